"""The plain training loop: torch.optim.SGD becomes fngd.FNGD, and nothing else changes.

The first epoch derives the coefficients of the samples, later epochs share their mean.
"""

import torch
from torch import nn

import fngd

torch.manual_seed(0)
x = torch.randn(512, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)

model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 2))
optimizer = fngd.FNGD(model, lr=0.3, momentum=0.9, weight_decay=5e-4, derive_steps=len(loader))

for epoch in range(5):
    phase, total = optimizer.phase, 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # p.grad now holds the natural gradient
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}, phase {phase!r}: loss {total / len(loader):.3f}")

for name, statistics in optimizer.statistics().items():
    print(f"layer {name}: {statistics}")
