"""A kind of layer that fngd does not know takes one function: the layer's forward pass, with layer.linear in it.

fngd.doctor says which layers have a rule, before and after.
"""

import torch
from torch import nn

import fngd


class Rotated(nn.Module):
    """A linear layer whose weight is stored transposed, on inputs that are turned first."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.table = nn.Parameter(torch.randn(d_in, d_out) / d_in**0.5)
        self.shift = nn.Parameter(torch.zeros(d_out))

    def forward(self, x):
        return x.roll(1, -1) @ self.table + self.shift


torch.manual_seed(0)
model = nn.Sequential(Rotated(16, 64), nn.ReLU(), nn.Linear(64, 2))
x = torch.randn(256, 16)
y = (x[:, :8].sum(1) > x[:, 8:].sum(1)).long()
print(fngd.doctor(model, x))


@fngd.register_layer(Rotated, parameters=("table", "shift"))
def rotated(module, layer, x):
    """The same forward pass; the weight must be a parameter of the module, or a view of one."""
    return layer.linear(x.roll(1, -1), module.table.T, module.shift)


print(fngd.doctor(model, x))
optimizer = fngd.FNGD(model, lr=0.3, momentum=0.9, derive_steps=10)
for _ in range(40):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}; preconditioned: {', '.join(optimizer.coefficients)}")
