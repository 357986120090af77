"""KFAC and Eva, written from their papers: what FNGD is compared with where no maintained package has the method."""

from fngd_bench.baselines.eva import Eva
from fngd_bench.baselines.kfac import KFAC

__all__ = ["KFAC", "Eva"]
