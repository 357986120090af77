"""The oracle of the baselines: sample by sample, column by column, dense, in float64, and none of the lab's code."""

import torch
import torch.nn.functional as F
from torch import nn


def uses(model, module, loss, x, y):
    """For each sample a list of pairs (columns a with the 1 for a bias, columns z), a pair for each use."""
    return [one_sample(model, module, loss, x[m : m + 1], y[m : m + 1]) for m in range(len(x))]


def one_sample(model, module, loss, x, y):
    kept = []

    def keep(_module, args, output):
        output.retain_grad()
        kept.append((args[0].detach(), output))

    handle = module.register_forward_hook(keep)
    try:
        loss(model(x), y).backward()
    finally:
        handle.remove()
    model.zero_grad()
    return [(columns(module, a), features_first(module, out.grad)) for a, out in kept]


def columns(module, x):
    if isinstance(module, nn.Linear):
        a = x.reshape(-1, x.shape[-1]).T
    else:
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode.replace("zeros", "constant"))
        a = F.unfold(x, module.kernel_size, module.dilation, 0, module.stride)[0]
    return a if module.bias is None else torch.cat((a, torch.ones_like(a[:1])))


def features_first(module, z):
    return z.reshape(-1, z.shape[-1]).T if isinstance(module, nn.Linear) else z[0].flatten(1)


def factors(samples):
    """KFAC's A and G, one outer product at a time."""
    M, T = len(samples), sum(a.shape[1] for a, _ in samples[0])
    A = sum(torch.outer(column, column) for uses in samples for a, _ in uses for column in a.T) / M
    G = sum(torch.outer(column, column) for uses in samples for _, z in uses for column in z.T) / (M * T)
    return A, G


def vectors(samples):
    """Eva's ā and ḡ."""
    a = torch.stack([torch.cat([a for a, _ in uses], 1).mean(1) for uses in samples]).mean(0)
    g = torch.stack([torch.cat([z for _, z in uses], 1).sum(1) for uses in samples]).mean(0)
    return a, g


def dense_kfac(gradient, A, G, damping):
    """The damped Kronecker product as one matrix, solved for a gradient (d_out, d_in) stacked row by row."""
    pi = ((A.trace() / len(A)) / (G.trace() / len(G))).sqrt()
    left = G + damping**0.5 / pi * torch.eye(len(G), dtype=G.dtype)
    right = A + damping**0.5 * pi * torch.eye(len(A), dtype=A.dtype)
    return torch.linalg.solve(torch.kron(left, right), gradient.flatten()).view_as(gradient)


def dense_eva(gradient, a, g, damping):
    """(āāᵀ ⊗ ḡḡᵀ + λI) as one matrix, solved for a gradient stacked row by row."""
    rank_one = torch.kron(torch.outer(g, g), torch.outer(a, a))
    damped = rank_one + damping * torch.eye(len(rank_one), dtype=a.dtype)
    return torch.linalg.solve(damped, gradient.flatten()).view_as(gradient)
