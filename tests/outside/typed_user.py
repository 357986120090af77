"""A program of a user who checks types strictly, with every public name in it.

`test_package.py` runs it, and has mypy and pyright read it, against the installed wheel.
"""

from collections.abc import Callable
from typing import Any, assert_type

import torch
from torch import Tensor, nn

import fngd


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return nn.functional.linear(2 * input, self.weight, self.bias)


@fngd.register_layer(Doubled, parameters=("weight", "bias"), replaces=("forward",))
def doubled(module: Doubled, layer: fngd.Layer, x: Tensor) -> Tensor:
    return layer.linear(2 * x, module.weight, module.bias)


class Halved(nn.Conv1d):
    pass


@fngd.register_layer(Halved)
def halved(module: Halved, layer: fngd.Layer, x: Tensor) -> Tensor:
    return layer.convolution(x / 2, module.weight, module.bias, (1,), (0,), (1,), module.groups)


keeps_its_type: Callable[[Doubled, fngd.Layer, Tensor], Tensor] = doubled


class EveryOther(fngd.Policy):
    def derives(self, step: int) -> bool:
        return step % 2 == 0

    def weight(self, count: Tensor) -> Tensor:
        return super().weight(count)

    def share(self, mean: Tensor) -> Tensor:
        return super().share(mean)


policies: list[fngd.Policy] = [
    fngd.Shared(derive_steps=10),
    fngd.Fresh(),
    fngd.Refreshed(every=10, decay=0.9),
    fngd.Constant(derive_steps=10),
    fngd.FromHead(alpha=0.005, rhs="residual", head="2"),
    EveryOther(),
]
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Doubled(8, 2))
x = torch.randn(6, 4)

optimizer = fngd.FNGD(
    model,
    [{"params": model.parameters(), "lr": 0.05}],
    lr=0.1,
    momentum=0.9,
    dampening=0.0,
    weight_decay=5e-4,
    nesterov=True,
    maximize=False,
    fused=None,
    alpha=0.005,
    damping=None,
    derive_steps=10,
    policy=None,
    scale_by_damping=False,
    loss_reduction="mean",
    batch_dim=0,
    gram_budget=1 << 20,
    gram_route="pairwise",
    exclude=["2"],
)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
assert_type(optimizer.phase, str)
assert_type(optimizer.coefficients, dict[str, Tensor])
assert_type(optimizer.statistics(), dict[str, fngd.LayerStatistics])
assert_type(optimizer.state_dict(), dict[str, Any])
assert_type(optimizer.preconditioner, fngd.NaturalGradient)
optimizer.load_state_dict(optimizer.state_dict())
optimizer.detach()
with fngd.FNGD(model, lr=0.1, policy=policies[0]) as held:
    assert_type(held, fngd.FNGD)

with fngd.NaturalGradient(model, torch.optim.AdamW(model.parameters()), policy=policies[1]) as natural:
    assert_type(natural, fngd.NaturalGradient)
    assert_type(natural.phase, str)
    assert_type(natural.step_count, int)
    assert_type(natural.attached, bool)
    assert_type(natural.coefficients, dict[str, Tensor])
    assert_type(natural.statistics(), dict[str, fngd.LayerStatistics])
    assert_type(natural.state_dict(), dict[str, Any])
    natural.watch(None)
    natural.load_state_dict(natural.state_dict())

for statistics in natural.statistics().values():
    assert_type(statistics.coefficient_mean, float)
    assert_type(statistics.shared_spread, float)
    assert_type(statistics.batches, int)

diagnosis = fngd.doctor(model, x, batch_dim=0, exclude=("0",))
assert_type(diagnosis, fngd.Diagnosis)
assert_type(diagnosis.coverage, float)
assert_type(diagnosis.warnings, tuple[str, ...])
assert_type([row.preconditioned for row in diagnosis.rows], list[bool])
assert_type(diagnosis.rows[0].flops, int)


def loss(copy: nn.Module) -> Tensor:
    output: Tensor = copy(x)
    return output.square().mean()


assert_type(fngd.gram_matrices(model, loss, batch_dim=0, exclude=()), dict[str, Tensor])
fngd.detach(model)
assert_type(fngd.__version__, str)
