"""Will it help my model? Measure whether the shared coefficients hold more than one constant for each layer.

One epoch of deriving is enough. Shuffled batches first; then batches in which a position means something, since their
second half always comes from another source, as where two data sets are mixed half and half.
"""

import math

import torch
from torch import nn

import fngd

CHANCE = 1.5  # a standard deviation over a few dozen positions is itself uncertain by a tenth or two


def derived(shuffled: bool) -> dict[str, fngd.LayerStatistics]:
    """Train for one epoch of 40 batches and return what they said of each layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    truth = nn.Linear(20, 5)
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, derive_steps=40)
    for _ in range(40):
        x = torch.randn(64, 20)
        x[32:] *= 3  # the second source is louder
        y = truth(x).argmax(1)
        order = torch.randperm(64) if shuffled else torch.arange(64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[order]), y[order]).backward()
        optimizer.step()
    return optimizer.statistics()


for shuffled in (True, False):
    print("shuffled batches" if shuffled else "the second half from another source")
    for name, layer in derived(shuffled).items():
        chance = layer.coefficient_spread / math.sqrt(layer.batches)
        verdict = "more than chance" if layer.shared_spread > CHANCE * chance else "a constant, up to chance"
        print(
            f"  layer {name}: mean {layer.coefficient_mean:.3f}, spread in a batch {layer.coefficient_spread:.4f}, "
            f"of the shared {layer.shared_spread:.4f}, by chance {chance:.4f}: {verdict}"
        )
