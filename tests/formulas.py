"""What a batch's coefficients and gradients must be under every policy: the formulas, in float64, on a plain copy.

For models whose output is the output of their last layer, and losses that are means over the samples.
"""

import copy

import torch
from torch.nn.functional import cross_entropy

import fngd
import reference
from fngd.layers.registry import survey

ALPHA = 0.005
EVERY_STEP = [fngd.Fresh(), fngd.FromHead(), fngd.FromHead(rhs="residual")]
"""Policies that derive at every step."""
ONCE = [fngd.Shared(1), fngd.Constant(1), fngd.Refreshed(100, 0.9)]
"""Policies that derive at the first step and share at the second."""
POLICIES = [*ONCE, *EVERY_STEP]


def exact(model):
    """A plain float64 copy with the very same weights."""
    return copy.deepcopy(model).double()


def layers(model):
    """The preconditioned modules by name."""
    return {finding.name: finding.module for finding in survey(model) if finding.kind is not None}


def columns(model, x, y, name, loss=cross_entropy):
    """U of one layer of a plain float64 model: (entries, M)."""
    return reference.alone(model, loss, [x.double()], y, list(model.get_submodule(name).parameters()))


def solved(K, rhs):
    """(I + K/(λM))⁻¹ rhs with λ = α‖K‖_F; rhs itself where there is no gradient."""
    M, lam = len(K), ALPHA * torch.linalg.matrix_norm(K)
    return torch.linalg.solve(torch.eye(M, dtype=K.dtype) + (K / (lam * M) if lam > 0 else 0 * K), rhs)


def residuals(model, x, y, loss):
    output = model(x.double()).detach().requires_grad_()
    rows = [loss(output[m : m + 1], y[m : m + 1]) for m in range(len(y))]
    lengths = torch.autograd.grad(sum(rows), output)[0].flatten(1).square().sum(1)
    return lengths / lengths.mean() if lengths.sum() > 0 else torch.ones_like(lengths)


def coefficients(policy, model, x, y, loss=cross_entropy):
    """c of one batch by layer: of each, or under FromHead of the last one alone."""
    model = exact(model)
    ones = torch.ones(len(y), dtype=torch.float64)
    if not isinstance(policy, fngd.FromHead):
        grams = {name: reference.gram(columns(model, x, y, name, loss)) for name in layers(model)}
        return {name: solved(K, ones) for name, K in grams.items()}
    head = list(layers(model))[-1]
    rhs = residuals(model, x, y, loss) if policy.rhs == "residual" else ones
    c = solved(reference.gram(columns(model, x, y, head, loss)), rhs)
    return {head: c / c.mean()}


def gradients(policy, model, x, y, c, loss=cross_entropy):
    """(1/M) U c of every layer by name; under FromHead the last layer's c is everyone's."""
    model = exact(model)
    found = {}
    for name in layers(model):
        own = next(iter(c.values())) if isinstance(policy, fngd.FromHead) else c[name]
        found[name] = columns(model, x, y, name, loss) @ own.double().expand(len(y)) / len(y)
    return found


def found_gradients(model):
    """What `p.grad` holds, by layer."""
    return {name: reference.flat([p.grad for p in module.parameters()]) for name, module in layers(model).items()}
