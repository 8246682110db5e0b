"""The command `arbiter`: lint, schema, init, run, explain."""

from arbiter.cli.app import main

__all__ = ["main"]
