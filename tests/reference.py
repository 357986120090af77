"""The oracle: slow, obvious, in float64, and without a line of the library.

`alone` runs each sample by itself; `copies` gives each sample its own copy of a layer's parameters inside the whole
batch, which also holds where BatchNorm ties the samples together. Both return U, a column for each sample.
"""

import torch


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def alone(model, loss, inputs, targets, parameters, batch_dim=0):
    """U = [u_1 … u_M] from M forward passes of one sample each; `loss` is the mean or the sum over its samples."""
    columns = []
    for m in range(inputs[0].shape[batch_dim]):
        one = [x.narrow(batch_dim, m, 1) for x in inputs]
        value = loss(model(*one), targets[m : m + 1])
        columns.append(flat(torch.autograd.grad(value, parameters)))
    return torch.stack(columns, 1)


def copies(model, module, loss, inputs, targets):
    """U of one module on (M, …) inputs: the batch's loss, times M, differentiated by each sample's own copy."""
    M = len(targets)
    own = [{k: p.detach().clone().requires_grad_() for k, p in module.named_parameters()} for _ in range(M)]
    plain = type(module).forward

    def forward(x):
        rows = [functional(module, plain, own[m], x[m : m + 1]) for m in range(M)]
        return torch.cat(rows)

    module.forward = forward
    try:
        value = loss(model(*inputs), targets) * M
    finally:
        del module.forward
    return torch.stack([flat(torch.autograd.grad(value, list(o.values()), retain_graph=True)) for o in own], 1)


def functional(module, forward, parameters, x):
    kept = dict(module._parameters)
    try:
        module._parameters.update(parameters)
        return forward(module, x)
    finally:
        module._parameters.update(kept)


def gram(U):
    return U.T @ U


def damping(U, alpha):
    return alpha * torch.linalg.matrix_norm(gram(U), "fro")


def coefficients(U, lam):
    """The paper's equation, with an explicit inverse: 1 − (λI + UᵀU/M)⁻¹ Uᵀg."""
    M = U.shape[1]
    g = U.mean(1)
    inverse = torch.linalg.inv(lam * torch.eye(M, dtype=U.dtype) + gram(U) / M)
    return torch.ones(M, dtype=U.dtype) - inverse @ (U.T @ g)


def natural_gradient(U, lam):
    """The definition: (F + λI)⁻¹ g with the dense Fisher matrix F = UUᵀ/M."""
    N, M = U.shape
    F = U @ U.T / M
    return torch.linalg.solve(F + lam * torch.eye(N, dtype=U.dtype), U.mean(1))


def relative_error(actual, expected):
    scale = expected.norm()
    return ((actual.to(expected.dtype) - expected).norm() / scale).item() if scale > 0 else actual.norm().item()
