"""The Gram matrices behind the coefficients, to look at: which samples pull in the same direction?"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from fngd.policies import Fresh
from fngd.preconditioner import NaturalGradient
from fngd.wrappers import copied, unwrapped


def gram_matrices(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    *,
    batch_dim: int = 0,
    exclude: Collection[str] = (),
) -> dict[str, Tensor]:
    r"""K̂ = UᵀU/‖UᵀU‖_F of every layer on one batch, the matrices of the paper's `\cref{fig:UTU}`.

    Args:
        model: The model, attached or not; a copy of it runs, so gradients and running means are not touched.
        loss: Computes the batch's loss with the model it is handed.
        batch_dim: The dimension of the model's inputs that counts the samples.
        exclude: Names of modules to leave out, with everything below them.

    Returns:
        By layer name, (M, M), in the order of the model.

    Example:
        >>> import torch, fngd
        >>> model, x = torch.nn.Linear(4, 2), torch.randn(8, 4)
        >>> fngd.gram_matrices(model, lambda copy: copy(x).square().mean())[""].shape
        torch.Size([8, 8])
    """
    specimen = copied(unwrapped(model).model).train()
    devices = {p.device for p in specimen.parameters() if p.device.type == "cuda"}
    found: dict[str, Tensor] = {}
    natural = NaturalGradient(specimen, policy=Fresh(), batch_dim=batch_dim, exclude=exclude)
    with natural, torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
        natural.watch(found.__setitem__)
        torch.autograd.backward(loss(specimen))
    return {layer.name: found[layer.name] for layer in natural.layers if layer.name in found}
