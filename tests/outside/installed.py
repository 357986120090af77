"""An environment as `pip install fngd` makes it: the built wheel, torch, what torch needs, and nothing else.

Torch is linked from the environment that runs the tests, distribution by distribution, instead of being unpacked once
more. So versions are those of `constraints.txt`, and a package that the library uses without asking for it is missing.
"""

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "records", "src", "tests", "tools")


def run(*command, cwd, code=0):
    """What a command says, on both of its streams; no environment variable tells it where this repository is."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=_plain_environment(), capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    return said


def build(folder):
    """The source distribution, and the wheel that is built from it."""
    copy = folder / "copy"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(file, copy)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=copy)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def install(wheel, folder):
    """A new environment with the wheel in it; returns its folder of commands."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in _with_needs("torch"):
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(found.locate_file(name))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-index", wheel, cwd=folder)
    return folder / "bin"


def _with_needs(name, seen=None) -> list[Distribution]:
    """A distribution and, one by one, those it cannot be without."""
    seen = {} if seen is None else seen
    if name.lower() not in seen:
        seen[name.lower()] = found = distribution(name)
        for need in found.requires or ():
            asked = Requirement(need)
            if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                _with_needs(asked.name, seen)
    return list(seen.values())


def _plain_environment():
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV")}
