"""The table of methods: every optimizer of the lab behind one interface, with its recipe.

A new method is one row in `table`, with a file of its own if it is not one call of a constructor. The laws in
`tests/bench/test_laws.py` then hold it to what every method keeps.
"""

from fngd_bench.optimizers.method import Method, Range, Recipe, backward, make, resolve
from fngd_bench.optimizers.table import METHODS, method

__all__ = ["METHODS", "Method", "Range", "Recipe", "backward", "make", "method", "resolve"]
