"""The viewer: what a ledger recorded as pages for a browser, live, with an inbox for questions that wait.

See docs/viewer.md.
"""

try:
    from arbiter.web.app import viewer
except ModuleNotFoundError as error:
    if error.name not in ("jinja2", "starlette"):
        raise
    raise ImportError(
        "the viewer needs starlette, uvicorn and jinja2: pip install 'arbiteros[web]'"
    ) from error

__all__ = ["viewer"]
