"""torch.compile: the model is compiled as always, and has one graph for each phase.

Prints the phase of each epoch, the graphs compiled so far and the breaks in them, and how far the gradients of the last
step are from those of the same model without its graph.
"""

import torch
from torch import nn
from torch._dynamo.utils import counters

import fngd

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(3, (256,)))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, derive_steps=len(loader))  # or after the next line: as you like
compiled = torch.compile(model, backend="inductor", fullgraph=True)  # fullgraph: a graph break would be an error


def gradients(run: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """What a backward pass leaves in `p.grad`."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(run(x), y).backward()
    return [p.grad.clone() for p in model.parameters()]


for epoch in range(3):
    phase = optimizer.phase
    for x, y in loader:
        gradients(compiled, x, y)
        optimizer.step()
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    print(f"epoch {epoch}, phase {phase!r}: {graphs} graphs so far, {breaks} breaks")

pairs = zip(gradients(compiled, x, y), gradients(model, x, y), strict=True)
print(f"largest difference to the gradients without a graph: {max((a - b).abs().max() for a, b in pairs):.1e}")
