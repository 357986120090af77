"""Eva: KFAC with rank-one factors, inverted by Sherman–Morrison at the cost of a few vector products.

From Zhang, Shi and Li (2023), "Eva: Practical Second-order Optimization with Kronecker-vectorized Approximation".
KFAC's factors, means of a aᵀ and of z zᵀ, are replaced with the outer products of the means. With a an input column
with a last coordinate 1 for the bias, z the gradient of a sample's own loss at the layer's output, M samples and T
columns (positions) each:

    ā = 1/(M T) Σ_m Σ_t a_mt            ḡ = 1/M Σ_m Σ_t z_mt

    v = (ā āᵀ ⊗ ḡ ḡᵀ + λI)⁻¹ g = (g − (ḡᵀ g ā) / (λ + ‖ā‖² ‖ḡ‖²) ḡ āᵀ) / λ

The paper's means are over samples. For several positions, note that a sample's gradient is Σ_t z_t a_tᵀ; the rank-one
form that is equal to it whenever all positions have the same input is (Σ_t z_t)(mean_t a_t)ᵀ. Hence the sum over
positions in ḡ and the mean in ā: ḡ āᵀ is of the scale of the gradient g, and equal to it for one sample with one
position. The loss is a mean over the samples, so ḡ is the plain sum of autograd's gradients, which is the gradient of
the bias.

Differs from public code: Eva's takes the first 16 samples only, means over positions on both sides, and leaves out the
factor M, so its ḡ is M T times smaller and the same number as `damping` is a much stronger damping there. It calls
"decay" the weight of the new value; here `decay` weights the old one, as in KFAC, and the published 0.95 is 0.05.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from fngd_bench.baselines.capture import Notes, Sums
from fngd_bench.baselines.layers import Layer
from fngd_bench.baselines.optimizer import PreconditionedSGD
from fngd_bench.baselines.settings import Settings
from fngd_bench.baselines.state import LayerState


@final
class Eva(PreconditionedSGD):
    """SGD with momentum on gradients that rank-one curvature has preconditioned.

    Example:
        >>> import torch
        >>> from fngd_bench.baselines import Eva
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = Eva(model, lr=0.1)
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
        damping: float = 0.03,
        decay: float = 0.05,
        kl_clip: float = 1e-3,
    ) -> None:
        """Attach to a model.

        Args:
            model: The model to train.
            params: Parameters or groups of them, as torch takes them; all of the model's by default.
            lr: Learning rate.
            momentum: Factor of the momentum buffer.
            weight_decay: Factor of the L2 penalty, added after preconditioning.
            damping: λ, added to the rank-one curvature.
            decay: The weight of the old running average of ā and ḡ; new statistics have 1 − decay.
            kl_clip: κ, the bound on a step's KL divergence; infinity for none.

        Raises:
            InputError: If an argument is out of range, or the model has no layer to precondition.
        """
        settings = Settings(damping=damping, decay=decay, kl_clip=kl_clip)
        super().__init__(model, params, lr=lr, momentum=momentum, weight_decay=weight_decay, settings=settings)

    @staticmethod
    def measure(layer: Layer, x: Tensor, z: Tensor) -> Sums:
        """Σ a and Σ z over the columns; a sum over the entries comes first, since columns are linear in them."""
        inputs, outputs = layer.inputs(x.sum(0, keepdim=True)), layer.outputs(z.sum(0, keepdim=True))
        columns = len(z) * outputs.shape[1]
        first = inputs.sum(1)
        if layer.homogeneous:
            first = torch.cat((first, first.new_tensor([columns])))
        return Sums(first, outputs.sum(1), columns)

    @staticmethod
    def statistics(notes: Notes) -> tuple[Tensor, Tensor]:
        """ā and ḡ of one step."""
        return notes.sums.inputs / notes.sums.columns, notes.sums.outputs

    def direction(self, state: LayerState, gradient: Tensor) -> Tensor:
        """(ā āᵀ ⊗ ḡ ḡᵀ + λI)⁻¹ g."""
        return sherman_morrison(gradient, state.inputs, state.outputs, self.settings.damping)


def sherman_morrison(gradient: Tensor, a: Tensor, g: Tensor, damping: float) -> Tensor:
    """(a aᵀ ⊗ g gᵀ + λI)⁻¹ times a gradient, without the matrix.

    Args:
        gradient: The layer's gradient, (d_out, width).
        a: ā, (width,).
        g: ḡ, (d_out,).
        damping: λ.

    Returns:
        The direction, (d_out, width).
    """
    share = g.dot(gradient @ a) / (damping + a.dot(a) * g.dot(g))
    return torch.addr(gradient, g * (-share / damping), a, beta=1 / damping)
