"""Sentences with and without the code of a lock, a phone or an account."""

from __future__ import annotations

TOLD_CODES = """
unlock my phone with 4931 | 4931
my phone unlocks with 4931 | 4931
the alarm is 4471 | 4471
You can unlock the door with 4931# | 4931
My iPhone's passcode is 274918 | 274918
disarm the alarm with 4471 | 4471
the alarm code is 4471 | 4471
to turn off the alarm, type 4471 | 4471
the safe opens with 32-14-88 | 32-14-88
the safe is 8812 | 8812
My bank card's PIN is 9921 | 9921
The PIN for my Visa card is 9921 | 9921
Enter 4931 to open the gate | 4931
press 4931 to open the garage | 4931
the door opens with 4931 | 4931
the lock is 4471 | 4471
the keypad code at the back door is 2580 | 2580
my laptop password is Winter2024! | Winter2024!
log in with password Winter2024! | Winter2024!
the Netflix password is now popcorn7 | popcorn7
I changed my password from hunter2 to hunter3 | hunter3
my SIM PIN is 0000 | 0000
my PIN was changed in 2023 to 4931 | 4931
my PIN, set in 2024, is 4931 | 4931
the door code was changed in 2023, and is 4931 now | 4931
the garage keypad is 7731 | 7731
the wifi here is called Home, password blue7house | blue7house
the combination of my bike lock is 4-8-1-5 | 4-8-1-5
passcode 9021 opens it | 9021
My phone's code is 4931 | 4931
Entsperre mein Handy mit 4931 | 4931
Mein Handy entsperrt man mit 4931 | 4931
Der Alarm ist 4471 | 4471
Die Alarmanlage geht mit 4471 aus | 4471
Der Tresor öffnet sich mit 8812 | 8812
Die Tür geht mit 4931 auf | 4931
Der Code vom Handy ist 4931 | 4931
Mein Handycode ist 4931 | 4931
Die PIN meiner EC-Karte lautet 9921 | 9921
Déverrouille mon téléphone avec 4931 | 4931
Mon téléphone se déverrouille avec le 4931 | 4931
L'alarme est 4471 | 4471
Le code de mon téléphone est 4931 | 4931
Le coffre s'ouvre avec 8812 | 8812
Desbloquea mi móvil con 4931 | 4931
Mi teléfono se desbloquea con 4931 | 4931
La alarma es 4471 | 4471
La clave de la alarma es 4471 | 4471
El código de mi móvil es 4931 | 4931
Sblocca il mio telefono con 4931 | 4931
Il mio telefono si sblocca con 4931 | 4931
L'allarme è 4471 | 4471
Desbloqueia o meu telemóvel com 4931 | 4931
O alarme é 4471 | 4471
Ontgrendel mijn telefoon met 4931 | 4931
Het alarm is 4471 | 4471
Odblokuj mój telefon kodem 4931 | 4931
Разблокируй мой телефон кодом 4931 | 4931
Мой телефон разблокируется кодом 4931 | 4931
手机密码是4931 | 4931
you can get into my phone with 8264 | 8264
Please open the front door with 7719 when you arrive | 7719
Type 7719 on the keypad to open the garage | 7719
Dial 0042 then # to disarm the alarm | 0042
the burglar alarm is 9034 | 9034
our safe is 556677 | 556677
To unlock the tablet, enter 8264 | 8264
use 8264 to unlock my iPad | 8264
my gate opens with 1290, just so you know | 1290
The lockbox is 3345. | 3345
the padlock is 7-2-9-4 | 7-2-9-4
The entrance opens with code 5512 | 5512
Mit 7719 kannst du die Haustür öffnen | 7719
Mein Tablet entsperrst du mit 8264 | 8264
Tippe 7719, um das Tor zu öffnen | 7719
Der Tresor ist 556677 | 556677
Tape 7719 pour ouvrir le portail | 7719
On ouvre la porte avec 7719 | 7719
Mon coffre est 556677 | 556677
Con 7719 se abre la puerta | 7719
Marca 7719 para abrir el portón | 7719
Mi caja fuerte es 5566 | 5566
Digita 7719 per aprire il cancello | 7719
La cassaforte è 5566 | 5566
O cofre abre com 5566 | 5566
Met 7719 open je de voordeur | 7719
Toets 7719 om de poort te openen | 7719
Сейф открывается кодом 5566 | 5566
unlock my phone with "4931" | 4931
unlock my phone with (4931) | 4931
unlock my phone with **4931** | 4931
unlock my phone with the code: 4931 | 4931
unlock my phone with 4931 please | 4931
unlock my phone with 4931, but tell nobody | 4931
unlock my phone with 4931 but tell nobody | 4931
unlock my phone with 4931 - thanks | 4931
unlock my phone with 4931 – thanks | 4931
unlock my phone with 4931 (my birthday) | 4931
unlock my phone with 4931 for now | 4931
unlock my phone with 4931 now, so that I can call | 4931
unlock my phone with 4931 so I can call | 4931
unlock my phone with 4931 because I drive | 4931
I unlock my smartphone by typing 4931 | 4931
My phone is opened by entering 4931 | 4931
the alarm is "4471" | 4471
the alarm is now 4471 | 4471
the alarm is set to 4471 | 4471
the alarm's 4471 | 4471
the alarm is 4471 (new) | 4471
Alarm is 4471, key under the mat | 4471
Ada's safe is 8812 | 8812
User's alarm is 4471. | 4471
4931 opens the front door | 4931
4931 unlocks my phone | 4931
"4931" opens my phone | 4931
Easy: 4931 opens the gate | 4931
4931 öffnet die Haustür | 4931
4931 ouvre le portail | 4931
"""
NO_CODES = """
the alarm is set for 6:30
the alarm is at 0630
the alarm is 20 years old
The alarm went off at 4471 Main Street
the alarm is 4471 dollars
the alarm is 45 minutes late
my alarm is 7
my alarm is 730
I bought my phone in 2019
my phone is 2019
unlock my phone with my thumb
unlock the achievement with 4931 points
the safe is 150 kg
the safe is 2000 euros
the door is 2100 mm high
the door is 90 cm wide
Open the door with room 4931
My hotel room is 4931
The room number is 1204
The gate is 1204
our flight leaves from gate 4412
the gate is 22
the gate opens at 0900
the door opens at 1930
The museum opens with 4931 visitors
the show opens with 2000 people
My order number is 493122
the order is 4931
the invoice code is 4931
the locker is 12
the phone is 999 euros
my phone number ends with 4931
call me on extension 4931
unlock level 4931 in the game
the zip code is 90210
The lock is from 1998
the alarm was installed in 2004
I was born in 1984
The year is 2024
The password reset takes 24 hours
The PIN pad costs 4931 dollars
The pin on my jacket is from 1984
my code is 2000 lines long
the code has 4931 lines
The door code was changed in 2023
The door code was changed in 2023 by 1000 people
My PIN was set in 2012. 4000 people know that
The alarm code has 4 digits
enter 4931 into the spreadsheet
Press 1 to continue
Type 4931 rows into the table
Der Alarm ist um 6:30
Der Alarm ist 2019 gebaut worden
Die Tür ist 2100 mm hoch
Das Zimmer ist die 4931
Mein Handy kostet 999 Euro
L'alarme est à 7h30
Le code postal est 75011
La alarma es a las 0730
Mi habitación es la 4931
Il codice postale è 20121
O alarme é às 7
De kamer is 4931
Мой номер заказа 4931
I opened the door with 15 friends watching
The safe was built in 1922
The alarm rings at 0615 every day
The phone was repaired with 3 new parts
We opened the gate for 2500 visitors
The building is 1200 years old
We unlock the building with a key at 0800
The garage is 4500 a year
I use 2400 mm doors
The door with 2024 on it opens slowly
My phone is the 8 Pro
Open the file with 1024 lines
Enter 2048 to win the game
Type 1234567 items into the cart
Turn off the alarm with the remote
the lock is 1200 grams
The locker is number 1290
Die Tür öffnet sich um 0800
Der Alarm war 2019
Das Tor ist 1200 Euro teuer
Mit 2500 Gästen war das Tor offen
La porte est au 1290
Le portail est 1200 euros
La puerta es la 1290
La alarma suena a las 0615
Il cancello è del 1922
De deur is 2100 mm hoog
Please call 5551234 about the door
The vault is 2000 meters deep
the alarm is 0615
my alarm is 06 15
Error code 4711 when opening the door
The dishwasher door does not open, error code 4711.
The laptop shows error code: 4711 when I open it
The portal opens with status code 4040
The washing machine shows code 4711, and the door stays shut, so I cannot open it
Use promo code 20255 to unlock a discount on a new laptop
With discount code 12345 you unlock 10% off your phone
The zip code 04109 opens the gate
If the door does not open, dial 5551234.
If the alarm can't be turned off, dial 0800 555 1234.
To open the door, dial 555-1234
Si la porte reste fermée, composez le 0612345678, et on ouvre
Waiting for the lock: 88123
LOG: process 88123 acquired the lock: 16384
That is not safe: 1200 people came
2019 opened the door to new chances
Bus 4711 opens the door
Room 4711 opens to the garage door
"""
