"""Write `docs/api.md`, the reference of all public names, from signatures and docstrings: `make docs` runs it.

griffe reads the source without running it; here is only how a name looks on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

Item = Any
"""A class, a function or a member as griffe has read it; its own types are wider than what is public here."""
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
CHAPTERS = {
    "Optimizer": ("FNGD", "NaturalGradient"),
    "Policies": ("Shared", "Fresh", "Refreshed", "Constant", "FromHead", "Policy"),
    "Looking": ("doctor", "Diagnosis", "LayerStatistics", "gram_matrices"),
    "Layers": ("register_layer", "Layer", "detach"),
}
HANDED = {"Diagnosis", "Layer", "LayerStatistics"}
"""What users are handed and never make: how it is made is not shown."""
MEMBERS = {"Layer": ("linear", "convolution")}
"""Where not all members are for users: those that are."""
HEADER = """# API reference

Made from the docstrings by `make docs`. Everything is in the package `fngd`; shapes and letters are those of
[notation.md](notation.md). `help(fngd.FNGD)` says the same in a terminal.
"""
STARS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
WIDTH = 100
"""Signatures longer than this take a line for each argument."""


def reference() -> str:
    """The page.

    Returns:
        Markdown.

    Raises:
        ValueError: If a public name is in no chapter, or a chapter names one that is not public.
    """
    package: Item = griffe.load("fngd", search_paths=[str(ROOT / "src")], docstring_parser="google")
    public, listed = set(package.exports), {name for names in CHAPTERS.values() for name in names}
    if public != listed:
        raise ValueError(f"CHAPTERS in {Path(__file__).name} and fngd.__all__ differ in {sorted(public ^ listed)}")
    lines = [HEADER]
    for chapter, names in CHAPTERS.items():
        lines += [f"- {chapter}: {', '.join(f'[`{name}`](#fngd{name.lower()})' for name in names)}"]
    for chapter, names in CHAPTERS.items():
        lines += ["", f"## {chapter}", *(line for name in names for line in _entry(_found(package, name)))]
    return "\n".join(lines) + "\n"


def _found(package: Item, name: str) -> Item:
    """What a public name stands for; `doctor` is a function, and the file that holds it."""
    item = package[name]
    return item[name] if item.is_module else item.final_target


def _entry(item: Item) -> Iterator[str]:
    """A public name: heading, signature, text, and the members of a class."""
    yield from ("", f"### `fngd.{item.name}`")
    if not item.is_class:
        yield from _signature(f"fngd.{item.name}", item.parameters, item.returns)
        yield from _text(item)
        return
    made = item.name not in HANDED and bool(item.parameters)
    if made:
        yield from _signature(f"fngd.{item.name}", list(item.parameters)[1:], None)
    yield from _text(item, item.members.get("__init__") if made else None)
    yield from _members(item)


def _members(item: Item) -> Iterator[str]:
    """Attributes and properties first, then methods, in the order of the source; not what a base class has shown."""
    shown_before = {name for base in item.mro() for name in base.members}
    names = MEMBERS.get(item.name, [name for name in item.members if not name.startswith("_")])
    shown = [item.members[name] for name in names if name not in shown_before and item.members[name].docstring]
    attributes = [member for member in shown if member.is_attribute]
    yield from ("", "Attributes:", "") if attributes else ()
    for member in attributes:
        yield f"- `{member.name}` (`{member.annotation}`): {_one_line(member.docstring.value)}"
    for member in (member for member in shown if not member.is_attribute):
        yield from ("", f"#### `{item.name}.{member.name}`")
        yield from _signature(member.name, list(member.parameters)[1:], member.returns)
        yield from _text(member)


def _signature(name: str, parameters: Iterable[griffe.Parameter], returns: object) -> Iterator[str]:
    """As it is written in Python, on one line or with a line for each argument."""
    words = list(_arguments(parameters))
    arrow = "" if returns is None or str(returns) == "None" else f" -> {returns}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){arrow}"])
    yield from ("", "```python", line, "```")


def _arguments(parameters: Iterable[griffe.Parameter]) -> Iterator[str]:
    """Each argument with its type and default, and the star before those that need their name."""
    starred = False
    for parameter in parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not starred:
            yield "*"
        starred = starred or kind in {griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional}
        star = "" if kind is None else STARS.get(kind, "")
        default = "" if parameter.default is None or star else f" = {parameter.default}"
        yield f"{star}{parameter.name}: {parameter.annotation}{default}"


def _text(*items: Item) -> Iterator[str]:
    """The sections of docstrings, those of the second after the first's, with examples at the end."""
    docstrings = [item.docstring for item in items if item is not None and item.docstring is not None]
    sections = [section for docstring in docstrings for section in docstring.parsed]
    for section in sorted(sections, key=lambda section: section.kind is griffe.DocstringSectionKind.admonition):
        yield ""
        yield from _section(section)


def _section(section: griffe.DocstringSection) -> Iterator[str]:
    match section.kind:
        case griffe.DocstringSectionKind.text:
            yield section.value
        case griffe.DocstringSectionKind.admonition:
            yield from ("```pycon", section.value.contents, "```")
        case griffe.DocstringSectionKind.returns:
            yield f"Returns: {_one_line(section.value[0].description)}"
        case griffe.DocstringSectionKind.raises:
            yield from (f"- Raises `{entry.annotation}`: {_one_line(entry.description)}" for entry in section.value)
        case griffe.DocstringSectionKind.parameters:
            yield from (f"- `{entry.name}`: {_one_line(entry.description)}" for entry in section.value)
        case other:
            raise ValueError(f"{other.value}: a section that the reference has no form for; add one")


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
