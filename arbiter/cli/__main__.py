"""`python -m arbiter.cli`: the same as `python -m arbiter`."""

from arbiter.cli import main

main()
