"""What the documents say is executed: README blocks, docstring examples, links."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import fngd
from fngd.layers import registry

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))


def test_the_readmes_python_runs_from_top_to_bottom(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    scope = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert printed.startswith("share\nLayerStatistics(")
    assert "2 of 3 modules" in printed
    scope["natural"].detach()


@pytest.mark.parametrize("name", [name for _, name, _ in pkgutil.walk_packages(fngd.__path__, "fngd.")])
def test_docstring_examples_print_what_they_say(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target


def test_the_code_map_names_every_file_of_the_library():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    library, lab = text.split("## Code map: the lab")
    for path in (ROOT / "src" / "fngd").rglob("*.py"):
        assert path.name == "__init__.py" or path.name in library, path.name
    for path in (ROOT / "src" / "fngd_bench").glob("*.py"):
        assert path.name == "__init__.py" or path.name in lab, path.name


def test_the_public_names_are_documented():
    for name in fngd.__all__:
        assert getattr(fngd, name).__doc__, name
