"""KFAC: a layer's Fisher matrix as the Kronecker product of two small ones, inverted by eigendecomposition.

From Martens and Grosse (2015), for convolutions Grosse and Martens (2016), with the intervals of Pauloski et al.
(2020). For M samples, T columns (positions) each, a the inputs with a last coordinate 1 for the bias, and z the
gradients of each sample's own loss at the layer's output, the Fisher matrix of [W b] is taken to be A ⊗ G with

    A = 1/M Σ_m Σ_t a_mt a_mtᵀ            G = 1/(M T) Σ_m Σ_t z_mt z_mtᵀ

z comes from the labels at hand, so this is the empirical Fisher matrix, from the backward pass that is done anyway. The
loss is a mean over the samples, so autograd's gradients are multiplied by M. Uses of a layer within one forward pass
are positions like any other. Damping λ is split between the factors by their mean eigenvalues:

    v = (G + √λ/π I)⁻¹ g (A + π√λ I)⁻¹,    π² = (tr A / dim A) / (tr G / dim G)

Conventions that scale A by s and G by 1/s (some have 1/T in A) give the same v, since π takes up s.

Differs from public code: kfac-pytorch leaves out the factor M at z and divides a and z by T, so its G is M² smaller for
a fully connected layer, and the same number as `damping` is a much stronger damping there.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from fngd_bench.baselines.capture import Notes, Sums
from fngd_bench.baselines.layers import Layer
from fngd_bench.baselines.optimizer import PreconditionedSGD
from fngd_bench.baselines.settings import Settings
from fngd_bench.baselines.state import LayerState

_BLOCK = 2**23
"""Entries of the matrix of input columns that are formed at a time."""


@final
class KFAC(PreconditionedSGD):
    """SGD with momentum on gradients that Kronecker-factored curvature has preconditioned.

    Example:
        >>> import torch
        >>> from fngd_bench.baselines import KFAC
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = KFAC(model, lr=0.1)
        >>> torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        params: ParamsT | None = None,
        *,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        damping: float = 0.003,
        decay: float = 0.95,
        statistics_every: int = 10,
        inverse_every: int = 100,
        kl_clip: float = 1e-3,
    ) -> None:
        """Attach to a model.

        Args:
            model: The model to train.
            params: Parameters or groups of them, as torch takes them; all of the model's by default.
            lr: Learning rate.
            momentum: Factor of the momentum buffer.
            weight_decay: Factor of the L2 penalty, added after preconditioning.
            damping: λ, added to the Fisher matrix.
            decay: The weight of the old running average of A and G; new statistics have 1 − decay.
            statistics_every: Steps between two measurements of A and G; the first step measures.
            inverse_every: Steps between two inversions; a layer is inverted first when it is measured first.
            kl_clip: κ, the bound on a step's KL divergence; infinity for none.

        Raises:
            InputError: If an argument is out of range, or the model has no layer to precondition.
        """
        settings = Settings(
            damping=damping,
            decay=decay,
            kl_clip=kl_clip,
            statistics_every=statistics_every,
            inverse_every=inverse_every,
        )
        super().__init__(model, params, lr=lr, momentum=momentum, weight_decay=weight_decay, settings=settings)

    @staticmethod
    def measure(layer: Layer, x: Tensor, z: Tensor) -> Sums:
        """Σ a aᵀ and Σ z zᵀ over the columns."""
        columns = layer.outputs(z)
        positions = columns.shape[1] // len(z)
        return Sums(second_moment(layer, x, positions), columns @ columns.t(), columns.shape[1])

    @staticmethod
    def statistics(notes: Notes) -> tuple[Tensor, Tensor]:
        """A and G of one step."""
        M = notes.samples
        T = notes.sums.columns / M
        return notes.sums.inputs / M, notes.sums.outputs * (M / T)

    def direction(self, state: LayerState, gradient: Tensor) -> Tensor:
        """(G + √λ/π I)⁻¹ g (A + π√λ I)⁻¹ with the inverses at hand, after new ones if it is time."""
        if not state.prepared or self.steps % self.settings.inverse_every == 0:
            state.prepared = damped_inverses(state.inputs, state.outputs, self.settings.damping)
        inverse_inputs, inverse_outputs = state.prepared
        return inverse_outputs @ gradient @ inverse_inputs


def second_moment(layer: Layer, x: Tensor, positions: int) -> Tensor:
    """Σ a aᵀ over the columns of a layer's input, with the coordinate 1 if the bias is trained.

    Args:
        layer: The layer.
        x: The entries of its input.
        positions: Columns of one entry.

    Returns:
        The sum, (width, width).
    """
    d = layer.fan_in
    total, first = x.new_zeros(d, d), x.new_zeros(d)
    for part in x.split(max(1, _BLOCK // (d * positions))):
        columns = layer.inputs(part)
        total.addmm_(columns, columns.t())
        first += columns.sum(1)
    if not layer.homogeneous:
        return total
    last = torch.cat((first, first.new_tensor([len(x) * positions])))
    return torch.cat((torch.cat((total, first.unsqueeze(1)), dim=1), last.unsqueeze(0)))


def damped_inverses(A: Tensor, G: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """Both factors of (A + π√λ I)⁻¹ ⊗ (G + √λ/π I)⁻¹.

    Args:
        A: The input side's factor.
        G: The output side's factor.
        damping: λ.

    Returns:
        The inverse of the damped A and that of the damped G.
    """
    mean_A, mean_G = A.trace().item() / len(A), G.trace().item() / len(G)
    pi = math.sqrt(mean_A / mean_G) if mean_A > 0 and mean_G > 0 else 1.0  # a factor that is 0 has no scale
    root = math.sqrt(damping)
    return _inverse(A, pi * root), _inverse(G, root / pi)


def _inverse(factor: Tensor, damping: float) -> Tensor:
    """(Q Λ Qᵀ + damping I)⁻¹ = Q (Λ + damping)⁻¹ Qᵀ; eigenvalues of the factor that rounding made negative count as 0.

    It is the damped factor that is decomposed: of factors of very low rank, LAPACK's float32 fails on one in a hundred.
    """
    damped = factor + damping * torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    values, vectors = _eigendecomposition(damped)
    return (vectors / values.clamp(min=damping)) @ vectors.t()


def _eigendecomposition(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Λ and Q; where float32 fails, by an error or by NaN without one, they come from float64."""
    with suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # torch documents it, but exports it by chance
        values, vectors = torch.linalg.eigh(matrix)
        if vectors.isfinite().all():
            return values, vectors
    values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)
