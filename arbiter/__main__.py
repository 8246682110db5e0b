"""`python -m arbiter`: the command, for environments in which its script is not on the path."""

from arbiter.cli import main

main()
