"""The command `arbiter`. `_app` has the commands and their options; docs/cli.md describes them."""

from arbiter.cli._app import main

__all__ = ["main"]
