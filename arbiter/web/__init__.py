"""The viewer: what a ledger recorded as pages for a browser, live, with an inbox for questions that wait.

See docs/viewer.md.
"""

try:
    from arbiter.web.app import viewer
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("jinja2", "sqlalchemy", "starlette"):
        raise
    raise ImportError(
        "the viewer needs starlette, uvicorn and jinja2: pip install 'arbiteros[web]'"
    ) from error

__all__ = ["viewer"]
