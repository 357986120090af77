"""What `test_package.py` runs where nothing but the wheel and torch is installed: three steps in each phase."""

import sys
from pathlib import Path

import torch
from torch import nn

import fngd

assert Path(fngd.__file__).is_relative_to(sys.prefix), fngd.__file__
assert "numpy" not in sys.modules

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3))
x, y = torch.randn(12, 1, 6, 6), torch.arange(12) % 3
optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, derive_steps=3)
losses, phases = [], []
for _ in range(6):
    phases.append(optimizer.phase)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert phases == ["derive"] * 3 + ["share"] * 3, phases
assert losses == sorted(losses, reverse=True), losses
assert len(optimizer.statistics()) == 2
sys.stdout.write(f"fngd {fngd.__version__}: {phases.count('derive')} steps derived, {phases.count('share')} shared\n")
