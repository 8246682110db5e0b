"""The command `arbiter`: lint, schema, init, run, explain."""

from arbiter.cli._app import main

__all__ = ["main"]
