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


class Formula:
    """Adds to the p.grad of a plain model what `backward` must leave there under a policy."""

    def __init__(self, model, policy):
        self.model, self.policy, self.steps, self.means, self.counts = model, policy, 0, {}, {}

    def backward(self, x, y, factor=1.0):
        """Add the gradient of `factor` times the mean of the samples' losses."""
        twin, trained = exact(self.model).requires_grad_(), self.trained()

        def loss(output, targets):
            return factor * cross_entropy(output, targets)

        U = {name: columns(twin, x, y, name, loss) for name in trained}
        c = self.derived(twin, x, y, trained, loss) if self.policy.derives(self.steps) else self.shared(len(y))
        for name, module in trained.items():
            own = next(iter(c.values())) if isinstance(self.policy, fngd.FromHead) else c[name]
            total = U[name] @ own / len(y)
            for p, part in zip(module.parameters(), total.split([p.numel() for p in module.parameters()]), strict=True):
                p.grad = part.view_as(p) + (0 if p.grad is None else p.grad)

    def trained(self):
        return {name: module for name, module in layers(self.model).items() if module.weight.requires_grad}

    def derived(self, twin, x, y, trained, loss):
        """The batch's own coefficients; as many as c̃ has enter it, fewer do not."""
        found = coefficients(self.policy, twin, x, y, loss)
        for name, c in found.items():
            if name in trained and len(c) >= len(self.means.get(name, ())):
                count = self.counts[name] = self.counts.get(name, 0) + 1
                share = float(self.policy.weight(torch.tensor(count, dtype=torch.float64)))
                self.means[name] = c if count == 1 else (1 - share) * self.means[name] + share * c
        return found

    def shared(self, size):
        """c̃, cut to the batch with its mean kept."""
        made = {name: self.policy.share(c).expand(len(c)) for name, c in self.means.items()}
        return {name: c[:size] * c.mean() / c[:size].mean() for name, c in made.items()}

    def count(self, *_):
        self.steps += 1
