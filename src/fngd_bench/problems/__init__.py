"""What is trained: a model with its batches, its loss and its test. One file a kind of problem."""

from fngd_bench.problems.base import Problem, Score
from fngd_bench.problems.classification import Classification
from fngd_bench.problems.translation import Translation

__all__ = ["Classification", "Problem", "Score", "Translation"]
