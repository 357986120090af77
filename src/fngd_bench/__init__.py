"""The lab around `fngd`: models, the clock, the price of a step, a demo, and the command `fngd`."""
