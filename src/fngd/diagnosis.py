"""What `doctor` says: a row for each module, and a table that prints itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fngd.planner import MOST, Plan, Shape

FROZEN = "frozen"


@dataclass(frozen=True)
class Row:
    """One module with parameters of its own."""

    name: str
    kind: str
    parameters: int
    preconditioned: bool = False
    reason: str = ""
    """Why it is not preconditioned, or why there are no shapes; else empty."""
    shapes: tuple[Shape, ...] = ()
    """Canonical sizes (M, G, T, d_in, d_out), one for each weight or separately used part of one."""
    plans: tuple[Plan, ...] = ()
    """How each one's Gram matrix is computed."""

    @property
    def gradient(self) -> str:
        """Either "weighted", "plain", or "none" where all is frozen."""
        return "weighted" if self.preconditioned else "none" if self.reason == FROZEN else "plain"

    @property
    def flops(self) -> int:
        """Operations to derive the layer's Gram matrix from a batch like the example."""
        return sum(chosen.flops for chosen in self.plans)

    @property
    def bytes(self) -> int:
        """Scratch memory held at once meanwhile."""
        return max((chosen.bytes for chosen in self.plans), default=0)


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found; `print` it, or read its fields.

    Example:
        >>> import torch, fngd
        >>> diagnosis = fngd.doctor(torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)))
        >>> round(diagnosis.coverage, 2)
        0.56
        >>> [(row.name, row.reason) for row in diagnosis.rows if not row.preconditioned]
        [('0', 'no rule for Embedding')]
    """

    rows: tuple[Row, ...]
    """For each module with parameters of its own: `name`, `kind`, `parameters` (how many), `preconditioned`, `reason`
    (why not), `gradient`, `shapes`, `plans`, `flops` and `bytes` of deriving."""
    coverage: float
    """The share of the trained parameters that is preconditioned; one that several modules hold counts once."""
    warnings: tuple[str, ...]
    """What goes another way than one may think, or would stop the training."""
    heads: tuple[str, ...] = ()
    """The layers through which the output is reached: what `FromHead` takes for the head, if there is one."""
    head_objection: str = ""
    """Why `FromHead` must be told the head; empty if it need not, or if there were no example inputs."""
    gram_budget: int = MOST
    """Bytes of scratch memory that one layer's Gram matrix may hold in a step on a batch like the example; more where
    it would be slow otherwise, unless the user has set it."""

    def __str__(self) -> str:
        """The table, the coverage and the warnings."""
        header = ("module", "kind", "parameters", "gradient", "M × T × d_in → d_out", "route", "GFLOP", "MiB")
        lines = _aligned([header, *(_cells(row) for row in self.rows)])
        counted = sum(row.preconditioned for row in self.rows)
        share = f"{self.coverage:.1%} of the trained parameters"
        summary = f"{counted} of {len(self.rows)} modules, {share} are preconditioned."
        warnings = [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, "", summary, *self._memory(), *self._head(), *warnings])

    def _memory(self) -> list[str]:
        """A line on scratch memory, if there were inputs that could say how much a step holds."""
        if not any(row.plans for row in self.rows):
            return []
        return [f"A Gram matrix may hold {self.gram_budget / 2**20:.3g} MiB of scratch memory (gram_budget)."]

    def _head(self) -> list[str]:
        """A line on what `FromHead` would make of the model, if that is known."""
        if self.head_objection:
            return [f"FromHead needs head=…: {self.head_objection}."]
        return [f"Head for FromHead: {name!r}." for name in self.heads]


def _cells(row: Row) -> tuple[str, ...]:
    gradient = row.gradient if row.preconditioned else f"{row.gradient}: {row.reason}"
    shapes = ", ".join(shape_text(shape) for shape in row.shapes) or (row.reason if row.preconditioned else "")
    routes = ", ".join(dict.fromkeys(chosen.route for chosen in row.plans))
    price = (f"{row.flops / 1e9:.3g}", f"{row.bytes / 2**20:.3g}") if row.plans else ("", "")
    return (row.name or "(model)", row.kind, f"{row.parameters:,}", gradient, shapes, routes, *price)


def shape_text(shape: Shape) -> str:
    """The sizes as the table shows them."""
    groups = f"{shape.G} groups of " if shape.G > 1 else ""
    return f"{groups}{shape.M} × {shape.T} × {shape.d_in} → {shape.d_out}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
