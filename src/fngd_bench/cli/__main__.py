"""`python -m fngd_bench.cli` is the command `fngd`."""

from fngd_bench.cli import main

main()
