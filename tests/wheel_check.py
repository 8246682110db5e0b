"""The wheel as a user gets it: built, installed alone, and run away from the checkout.

Run by `make wheel`. It needs `build` and an index to install the dependencies from.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PACKS = ("evaluators", "instructions", "policies")
DEMO = ROOT / "examples" / "stdlib_assistant.py"
DEMO_SECONDS = 300
RULE = "run_steps"

# Says where `arbiter` was imported from, after touching every public name: some may be imported
# only when they are asked for.
PROBE = """
import arbiter
for name in arbiter.__all__:
    getattr(arbiter, name)
print(next(iter(arbiter.__path__)))
"""

# The rules that ship are in the wheel, and hold.
KERNEL = """
from arbiter import ArbiterOS
arbiter_os = ArbiterOS.from_constitution("arbiter:kernel")
print(*(rule.name for rule in arbiter_os.constitution.checkers))
"""


class WheelError(Exception):
    """A defect of the wheel; the text describes it."""


def build_wheel(folder: Path) -> Path:
    """Build by way of the source archive, so that one which lacks a file is found out too."""
    python(Path(sys.executable), "-m", "build", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_top_level(wheel: Path) -> None:
    """Only `arbiter/` and the metadata are installed: no tests, examples or second package."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name.split("/", 1)[0] for name in archive.namelist()}
    if foreign := sorted(name for name in found if name != "arbiter" and not name.endswith(".dist-info")):
        raise WheelError(f"{wheel.name} would install {foreign!r} beside 'arbiter'")


def install(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel and its dependencies; the path of its interpreter."""
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    python(interpreter, "-m", "pip", "install", "--quiet", str(wheel))
    return interpreter


def installed_package(interpreter: Path, workdir: Path) -> Path:
    """Import `arbiter` away from the checkout, and say from where it came."""
    package = Path(python(interpreter, "-c", PROBE, cwd=workdir).strip())
    environment = interpreter.parent.parent
    if not package.is_relative_to(environment):
        raise WheelError(f"'arbiter' was imported from {package}, which is not in {environment}")
    return package


def check_packs(package: Path) -> Iterator[str]:
    """Compare the three folders with their installed copies, file by file; a line for each."""
    for kind in PACKS:
        ours, theirs = contents(ROOT / kind), contents(package / "packs" / kind)
        if not ours:
            raise WheelError(f"{kind}/ has no files")
        if differing := sorted(
            name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
        ):
            raise WheelError(f"{kind}/ and arbiter/packs/{kind}/ differ in {differing!r}")
        yield f"packs/{kind}: the same {len(ours)} files as {kind}/"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its relative path; empty if there is no such folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def check_pages(package: Path) -> str:
    """Compare the files of the viewer's pages with their installed copies, byte by byte."""
    for folder in ("static", "templates"):
        ours, theirs = contents(ROOT / "arbiter" / "web" / folder), contents(package / "web" / folder)
        if not ours or ours != theirs:
            lacking = sorted(name for name in ours if ours[name] != theirs.get(name))
            raise WheelError(f"arbiter/web/{folder}/ differs in {lacking!r}")
    return "web: the same pages and static files"


def check_typed(package: Path) -> None:
    """Without `py.typed` a user's type checker ignores every annotation we ship."""
    if not (package / "py.typed").is_file():
        raise WheelError("arbiter/py.typed is not in the wheel")


def run_demo(interpreter: Path, workdir: Path) -> str:
    """Run a copy of the demo where no file of the checkout can help it; what it printed."""
    shutil.copy(DEMO, workdir)
    printed = python(interpreter, DEMO.name, cwd=workdir, timeout=DEMO_SECONDS)
    if not printed.strip():
        raise WheelError(f"{DEMO.name} printed nothing")
    return printed


def check_command(interpreter: Path, workdir: Path) -> None:
    """The script `arbiter` is installed and finds the rules that ship."""
    command = str(interpreter.with_name("arbiter"))
    for arguments, said in (("--help",), "explain"), (("explain", RULE), "arbiter:policies/kernel.yaml"):
        if said not in execute(command, *arguments, cwd=workdir):
            raise WheelError(f"arbiter {' '.join(arguments)} does not say {said!r}")


def check_kernel(interpreter: Path, workdir: Path) -> int:
    """Load the kernel away from the checkout; how many rules it has."""
    rules = python(interpreter, "-c", KERNEL, cwd=workdir).split()
    if RULE not in rules:
        raise WheelError(f"arbiter:kernel has the rules {rules!r}, and not {RULE!r}")
    return len(rules)


def python(interpreter: Path, *arguments: str, cwd: Path | None = None, timeout: float | None = None) -> str:
    return execute(str(interpreter), *arguments, cwd=cwd, timeout=timeout)


def execute(command: str, *arguments: str, cwd: Path | None = None, timeout: float | None = None) -> str:
    """Run a command and return what it printed; failing or taking too long is a `WheelError`."""
    # PYTHONPATH and a caller's environment would let the checkout in by the back door.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    try:
        done = subprocess.run(
            [command, *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise WheelError(f"{arguments!r} took longer than {timeout} s") from expired
    if done.returncode:
        raise WheelError(f"{arguments!r} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> int:
    """Run every check, with a line for each; 1 at the first that fails."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        workdir = folder / "elsewhere"
        workdir.mkdir()
        try:
            wheel = build_wheel(folder)
            check_top_level(wheel)
            print(f"built {wheel.name}", flush=True)
            interpreter = install(wheel, folder / "environment")
            package = installed_package(interpreter, workdir)
            print("installed it alone and imported arbiter from another folder", flush=True)
            print(check_pages(package), flush=True)
            for line in check_packs(package):
                print(line, flush=True)
            check_typed(package)
            print("py.typed: there", flush=True)
            check_command(interpreter, workdir)
            print("arbiter --help and arbiter explain: ran", flush=True)
            print(f"arbiter:kernel: {check_kernel(interpreter, workdir)} rules loaded", flush=True)
            printed = run_demo(interpreter, workdir)
            print(f"{DEMO.name}: ran, and printed {len(printed.splitlines())} lines", flush=True)
        except WheelError as error:
            print(f"wheel check failed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
