"""`python -m arbiter`: the command where its script is not on the path."""

from arbiter.cli import main

main()
