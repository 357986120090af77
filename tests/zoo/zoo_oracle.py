"""Which of a specimen's modules are layers, and what its gradients must be: without a line of the library."""

import copy
import math

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import reference

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Conv1D)
ALPHA = 0.05


def shapes(specimen):
    """The modules that must be preconditioned, by name, with their canonical sizes: those that a forward pass calls."""
    model, M, found = copy.deepcopy(specimen.model), len(specimen.shares), {}
    for name, module in model.named_modules():
        if isinstance(module, KINDS) and any(p.requires_grad for p in module.parameters(recurse=False)):
            module.register_forward_hook(lambda module, _, output, name=name: found.update({name: (module, output)}))
    specimen.loss(model, specimen.batch)
    return {name: canonical(module, output, M) for name, (module, output) in found.items()}


def canonical(module, output, M):
    """(M, G, T, d_in, d_out) of a module, from what it returned."""
    groups, kernel = getattr(module, "groups", 1), math.prod(getattr(module, "kernel_size", (1,)))
    d_in, d_out = module.weight.shape if isinstance(module, Conv1D) else module.weight.shape[1::-1]
    return M, groups, output.numel() // (M * d_out), d_in * kernel, d_out // groups


def untied(model):
    """A copy in which every module has parameters of its own."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        for key, p in list(module.named_parameters(recurse=False)):
            setattr(module, key, nn.Parameter(p.detach().clone(), p.requires_grad))
    return twin


def summands(specimen):
    """By parameter, each sample's summand of the batch's gradient: every sample runs alone, and no weight is tied."""
    twin = untied(specimen.model)
    names = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    rows = {name: [] for name in names}
    for m, share in enumerate(specimen.shares):
        value = share * specimen.loss(twin, specimen.one(m))
        gradients = torch.autograd.grad(value, list(names.values()), allow_unused=True)
        for row, gradient in zip(rows.values(), gradients, strict=True):
            row.append(gradient)
    return {name: torch.stack(row) for name, row in rows.items() if row[0] is not None}


def own(model, module):
    """The names of a module's parameters that are trained."""
    held = model.get_submodule(module).named_parameters(recurse=False)
    return [f"{module}.{key}".lstrip(".") for key, p in held if p.requires_grad]


def expected(specimen, shared=None, excluded=()):
    """Every gradient, by name: Σ_m c_m u_m for the layers, with their own c or shared ones; the plain sum for the rest.

    A weight that several modules hold takes the sum of what each of them sends.
    """
    rows, M = summands(specimen), len(specimen.shares)
    sent = {name: row.sum(0) for name, row in rows.items()}
    for layer in [layer for layer in shapes(specimen) if not layer.startswith(tuple(excluded))]:
        names = [name for name in own(specimen.model, layer) if name in rows]
        if names:
            U = M * torch.cat([rows[name].flatten(1) for name in names], 1).T
            c = reference.coefficients(U, reference.damping(U, ALPHA)) if shared is None else shared[layer]
            sent.update({name: torch.einsum("m,m...->...", c, rows[name]) for name in names})
    total = {}
    for name, p in specimen.model.named_parameters(remove_duplicate=False):
        if name in sent:
            total[p] = total.get(p, 0) + sent[name]
    return {name: total[p] for name, p in specimen.model.named_parameters(remove_duplicate=False) if p in total}


def worst_error(specimen, wanted):
    """The largest relative error of a module's gradients; infinite if one is there that must not be, or is missing.

    A module's parameters are taken together: a key's bias has a gradient of zero, of which rounding is no small part.
    """
    worst = 0.0
    for module, _ in specimen.model.named_modules():
        names = own(specimen.model, module)
        found = {name: p.grad for name in names if (p := specimen.model.get_parameter(name)).grad is not None}
        if found.keys() != wanted.keys() & set(names):
            return math.inf
        if found:
            pair = [reference.flat([table[name] for name in found]) for table in (found, wanted)]
            worst = max(worst, reference.relative_error(*pair))
    return worst
