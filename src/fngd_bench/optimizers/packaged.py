"""SOAP and AdaHessian of `pytorch_optimizer`, held to torch's contract for copies."""

from __future__ import annotations

from collections.abc import Callable

import pytorch_optimizer
from torch.optim.optimizer import ParamsT

from fngd_bench.optimizers.copies import Copies


class SOAP(Copies, pytorch_optimizer.SOAP):
    """Adam in the eigenbasis of Shampoo's factors (Vyas et al., 2024). Its first step gathers statistics only."""

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float,
        inverse_every: int,
        largest: int,
    ) -> None:
        """Hold parameters.

        Args:
            params: Parameters or groups of them.
            lr: Learning rate.
            betas: Decay of the gradient's mean, and of its square's and the factors'.
            weight_decay: Decoupled weight decay.
            eps: Added to the denominator.
            inverse_every: Steps from one eigenbasis to the next.
            largest: Axes longer than this have no factor.
        """
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            weight_decay=weight_decay,
            eps=eps,
            precondition_frequency=inverse_every,
            max_precondition_dim=largest,
        )


class AdaHessian(Copies, pytorch_optimizer.AdaHessian):
    """Adam with the Hessian's diagonal in place of the gradient (Yao et al., 2021), estimated by Hutchinson's method.

    Differs from the paper: it averages the diagonal over each convolution's kernel, the package does not.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float,
        hessian_power: float,
        samples: int,
    ) -> None:
        """Hold parameters.

        Args:
            params: Parameters or groups of them.
            lr: Learning rate.
            betas: Decay of the gradient's mean and of the squared diagonal's.
            weight_decay: Decoupled weight decay.
            eps: Added to the denominator.
            hessian_power: Exponent of the diagonal.
            samples: Random directions for each estimate.
        """
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            weight_decay=weight_decay,
            eps=eps,
            hessian_power=hessian_power,
            num_samples=samples,
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; afterwards the gradients let go of the graph they hold, and with it of its memory.

        Args:
            closure: Computes the loss and its differentiable gradients anew.

        Returns:
            What the closure returned.
        """
        loss: float | None = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.detach()
        return loss
