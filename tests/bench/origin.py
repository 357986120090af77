"""A made-up machine that made-up records come from."""

from fngd_bench.provenance import Provenance

ORIGIN = Provenance(
    commit="0123456789abcdef",
    dirty=False,
    date="2026-01-02T03:04:05+00:00",
    python="3.11.7",
    torch="2.13.0",
    fngd="0.1.0",
    system="Linux",
    cpu="A processor",
    cores=2,
    threads=2,
)
