"""Runs the ```python blocks of README.md and docs/, so that every shown program works.

Run by `make docs`, or with the pages to run: `python -m tests.docs_check docs/policies.md`.

The blocks of a page run in order, as one program in an empty working folder; `await` may stand at
the top level, as in a notebook. A block right after `<!-- not run: the reason -->` is compiled only.
A block right after `<!-- file: policies/team.yaml -->` is that file, and exists before they run.
A comment with expected output, `print(x)  # 3`, or in the lines right below, must match the real output.
"""

import ast
import asyncio
import inspect
import io
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)")
NOT_RUN = re.compile(r"^\s*<!--\s*not run:\s*(?P<reason>\S.*?)\s*-->\s*$")
FILE = re.compile(
    r"^<!-- file: (?P<path>\S+) -->\n(?P<fence>`{3,})\w*\n(?P<text>.*?)^(?P=fence)$", re.M | re.S
)
SAID = re.compile(r"^\s*print\(.*\)  # (?P<said>\S.*?)\s*$")
SAID_BELOW = re.compile(r"^\s*print\(.*\)\n(?P<said>(?:\s*# .*(?:\n|$))+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of Python. `line` is that of its first line of code, counted from 1."""

    line: int
    source: str
    not_run: str | None

    def compile(self, page: Path) -> CodeType:
        """Code whose tracebacks point into `page`. Raises `SyntaxError`, which does so too."""
        padding = "\n" * (self.line - 1)
        code: CodeType = compile(
            padding + self.source,
            str(page),
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            # The annotations of a page are its own: ours must not reach into it.
            dont_inherit=True,
        )
        return code


class PageError(Exception):
    """A block of a page failed. `detail` has its traceback and what the page had printed."""

    def __init__(self, page: Path, line: int, summary: str, detail: str) -> None:
        super().__init__(f"{shown(page)}:{line}: {summary}")
        self.page = page
        self.line = line
        self.detail = detail


def pages() -> list[Path]:
    """README.md, then everything under docs/."""
    readme = ROOT / "README.md"
    return [*([readme] if readme.is_file() else []), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """The Python blocks of a page in order, those that are not run included."""
    lines = text.splitlines()
    reason: str | None = None
    at = 0
    while at < len(lines):
        if opening := FENCE.match(lines[at]):
            end = closing_line(lines, at, opening["fence"])
            if opening["language"].lower() in {"python", "py"}:
                source = dedent("\n".join(lines[at + 1 : end])) + "\n"
                yield Block(line=at + 2, source=source, not_run=reason)
            reason = None
            at = end
        elif lines[at].strip():
            comment = NOT_RUN.match(lines[at])
            reason = comment["reason"] if comment else None
        at += 1


def closing_line(lines: Sequence[str], at: int, fence: str) -> int:
    """Where the block that opens at `at` ends; the end of the page if it is never closed."""
    for number in range(at + 1, len(lines)):
        line = lines[number].strip()
        if line.startswith(fence) and set(line) == {fence[0]}:
            return number
    return len(lines)


def run(page: Path) -> list[Block]:
    """Run a page in a fresh `__main__` and an empty folder; its blocks. Raises `PageError`."""
    text = page.read_text(encoding="utf-8")
    found = list(blocks(text))
    printed = io.StringIO()
    with (
        TemporaryDirectory() as folder,
        chdir(folder),
        fresh_main() as module,
        redirect_stdout(printed),
        redirect_stderr(printed),
        asyncio.Runner() as runner,
    ):
        write_files(text)
        vars(module)["print"] = held_print(text.splitlines())
        for block in found:
            try:
                code = block.compile(page)  # also where it is not run: it is Python at least
                if block.not_run is None:
                    run_block(code, module, runner)
            except (Exception, SystemExit) as error:
                raise page_error(page, block, error, printed.getvalue()) from error
    return found


def write_files(text: str) -> None:
    """The files that a page shows, in the working folder."""
    for shown_file in FILE.finditer(text):
        path = Path(shown_file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown_file["text"], encoding="utf-8")


def run_block(code: CodeType, module: ModuleType, runner: asyncio.Runner) -> None:
    """Run the code of one block; one with an `await` of its own runs in the page's loop."""
    # Running what our own pages say is the whole purpose of this file.
    result = eval(code, module.__dict__)
    if inspect.iscoroutine(result):
        runner.run(result)


def held_print(lines: Sequence[str]) -> Callable[..., None]:
    """A `print` that fails if its output differs from the comment on its line of the page, or right below."""

    def checked(*values: object, **options: Any) -> None:
        print(*values, **options)
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        below = "\n".join(lines[frame.f_back.f_lineno - 1 :])
        got = " ".join(map(str, values))
        if said := SAID.match(below.partition("\n")[0]):
            expected = said["said"]
        elif said := SAID_BELOW.match(below):  # may be wrapped
            expected = " ".join(re.sub(r"^\s*# ", "", said["said"], flags=re.M).split())
            got = " ".join(got.split())
        else:
            return
        if got != expected:
            raise AssertionError(f"the page says that this prints {expected!r}, not {got!r}")

    return checked


@contextmanager
def fresh_main() -> Generator[ModuleType]:
    """An empty `__main__` for a while: annotations and pickles are resolved by module name."""
    ours, module = sys.modules["__main__"], ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        yield module
    finally:
        sys.modules["__main__"] = ours


def page_error(page: Path, block: Block, error: BaseException, printed: str) -> PageError:
    """The error with the line of the page it came from, which is not always the innermost frame."""
    inside = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(page)]
    if inside:
        line = inside[-1].lineno or block.line
    else:
        line = (error.lineno if isinstance(error, SyntaxError) else None) or block.line
    detail = "".join(traceback.format_exception(error))
    if printed:
        detail += f"printed before that:\n{printed}"
    summary = traceback.format_exception_only(error)[-1].strip()
    return PageError(page, line, summary, detail)


def shown(page: Path) -> str:
    """The path as a reader of the repository writes it."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)


def main(arguments: Sequence[str]) -> int:
    """Run the pages, with a line for each; 1 when one failed, or when there was nothing to run."""
    failures: list[PageError] = []
    ran = 0
    for page in [Path(name).resolve() for name in arguments] or pages():
        try:
            found = run(page)
        except PageError as error:
            failures.append(error)
            print(f"{shown(page)}: failed", flush=True)
            continue
        skipped = [block for block in found if block.not_run is not None]
        ran += len(found) - len(skipped)
        print(f"{shown(page)}: {len(found) - len(skipped)} blocks ran", flush=True)
        for block in skipped:
            print(f"  line {block.line} not run: {block.not_run}", flush=True)
    for failure in failures:
        print(f"\n{failure.detail}{failure}", file=sys.stderr)
    if not ran and not failures:
        print("no Python block was found in README.md or docs/", file=sys.stderr)
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
