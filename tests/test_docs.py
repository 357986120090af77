"""The pages of `docs/`: the index is complete, and the reference is what the docstrings say."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

import fngd
from fngd.layers import registry

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))


def test_the_reference_is_what_the_docstrings_say():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == _tool("api_reference").reference(), "run `make docs`"


@pytest.mark.parametrize("name", fngd.__all__)
def test_every_public_name_has_an_example(name):
    assert re.search(r"^ *Example:\n +>>> ", getattr(fngd, name).__doc__, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_in_pages_print_what_they_say(path):
    text = re.sub(r"^```.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0)
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_the_index_names_every_page_and_every_example():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#:]+)\)", index)}
    there = {*PAGES, *(ROOT / "examples").glob("*.py")} - {ROOT / "docs" / "README.md"}
    assert sorted(path.name for path in there - linked) == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text(encoding="utf-8")):
        page = (path.parent / target).resolve() if target else path
        assert anchor in _anchors(page), f"{target}#{anchor}"


def _anchors(page):
    """The anchors of a page's headings: small letters, blanks as dashes, of other signs only - and _ are kept."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
