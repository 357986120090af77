"""Every file of examples/ runs, offline and from a plain command line, and says that it worked."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SECONDS = 120


def command(path):
    """The command line of an example: Python's, or the torchrun line that its docstring gives."""
    wanted = re.search(r"^Run with: torchrun (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    line = shlex.split(wanted.group(1)) if wanted else [f"examples/{path.name}"]
    return [sys.executable, *(["-m", "torch.distributed.run"] if wanted else []), *line]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_that_it_worked(path):
    done = subprocess.run(command(path), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_some_page_links_to_the_example(path):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"examples/{path.name})" in page.read_text(encoding="utf-8") for page in pages)
