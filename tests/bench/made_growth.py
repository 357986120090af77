"""A made-up record of `fngd bench scaling` whose exponents are known."""

from origin import ORIGIN

from fngd_bench.price.scaling_record import Measurement, PartTimes, Point, ScalingRecord, ScalingSettings
from fngd_bench.price.surroundings import Surroundings

SIZES = (16, 32, 64, 128, 256, 512)
METHODS = ("sgd", "fngd-share", "kfac")
WOBBLE = (1.0, 1.02, 0.99, 1.01, 0.98)
"""What slows down a whole round."""


def seconds(method, size, share_exponent):
    """SGD: size. Sharing: 5 % more, times a power of the size. KFAC: a constant more."""
    sgd = 1e-4 * size
    own = {"sgd": sgd, "fngd-share": 1.05 * sgd * size**share_exponent, "kfac": sgd + 0.01}[method]
    return tuple(own * wobble for wobble in WOBBLE)


def state(method, size):
    return {"sgd": 4000, "fngd-share": 4000 + 100 + 4 * size, "kfac": 12000}[method]


def made_record(
    *, share_exponent=0.0, rows=(("linear", "batch"),), methods=METHODS, others=0.0, peak=None, sizes=SIZES
):
    fixed = {"batch": 32, "width": 64, "depth": 1}
    measured = tuple(
        Measurement(
            point=Point(subject=subject, axis=axis, **{**fixed, axis: size}),
            method=method,
            parameters=1000,
            parts=(PartTimes(name="every", share=1.0, seconds=seconds(method, size, share_exponent)),),
            state_bytes=state(method, size),
            peak_bytes=None if peak is None else peak * size,
        )
        for subject, axis in rows
        for size in sizes
        for method in methods
    )
    settings = ScalingSettings(
        scale="cpu",
        subjects=tuple(dict.fromkeys(subject for subject, _ in rows)),
        axes=tuple(dict.fromkeys(axis for _, axis in rows)),
        methods=methods,
        rounds=5,
        warmup=2,
        peaks=peak is not None,
        seed=0,
    )
    return ScalingRecord(
        settings=settings, measured=measured, surroundings=Surroundings(other_cores=others), provenance=ORIGIN
    )
