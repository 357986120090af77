"""`python -m fngd_bench` is the command `fngd`: what torchrun starts."""

from fngd_bench.command import main

main()
