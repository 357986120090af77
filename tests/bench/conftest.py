"""Records made by hand, with numbers whose ratios one can check in one's head."""

import pytest
from origin import ORIGIN

from fngd_bench.price.record import ImportRecord, Measured, StepRecord, StepSettings
from fngd_bench.price.surroundings import Surroundings


@pytest.fixture
def make_record():
    """A step record from ratios: each method's times and memory are `sgd`'s times its ratio."""

    def make(steps=20, model="resnet32", **ratios):
        ratios = {"sgd": 1.0, **{name.replace("_", "-"): ratio for name, ratio in ratios.items()}}
        base = [0.1 + 0.01 * (r % 3) for r in range(steps)]
        measured = tuple(
            Measured(
                method=name,
                period=1,
                seconds=tuple(ratio * t for t in base),
                peak_bytes=tuple(round(ratio * 100 * 2**20) for _ in range(3)),
            )
            for name, ratio in ratios.items()
        )
        settings = StepSettings(
            model=model,
            classes=10,
            batch=128,
            image_size=32,
            methods=tuple(ratios),
            steps=steps,
            warmup=5,
            memory_runs=3,
            seed=0,
        )
        return StepRecord(
            settings=settings,
            parameters=464154,
            measured=measured,
            surroundings=Surroundings(other_cores=0.0),
            provenance=ORIGIN,
        )

    return make


@pytest.fixture
def import_record():
    return ImportRecord(fngd_seconds=(1.02,) * 7, torch_seconds=(1.0,) * 7, seed=0, provenance=ORIGIN)
