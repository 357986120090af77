"""Shampoo of `pytorch_optimizer`, set up as its papers have it and held to torch's contract for state.

The package has two. `Shampoo` gathers statistics at every step, does not move at all until its first inverse, and
feeds preconditioned gradients back as momentum. `ScalableShampoo` (Anil et al., 2020) has intervals for statistics and
inverses and takes the size of its steps from SGD ("grafting"), so that SGD's learning rate fits: it is used here.

What is set differently from the package's defaults, and why:
- every axis of a weight has its own factor, to the power −1/(2 · axes), as in Gupta et al. (2018); the package's
  guess at shapes would merge a convolution's output and input channels, and not precondition small weights at all;
- momentum is SGD's, without Nesterov, as in every other row of the table that has momentum;
- the first inverse is computed at the first step, as KFAC's is, not when the first interval is over.

The package keeps objects in its state. `state_dict` has tensors in their place, which load with `weights_only=True`.
"""

from __future__ import annotations

from typing import Any

from pytorch_optimizer import ScalableShampoo
from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting, build_graft
from pytorch_optimizer.optimizer.utils.preconditioner import PreConditioner
from torch import Tensor
from torch.optim.optimizer import ParamsT

from fngd_bench.optimizers.copies import Copies

BLOCK = 1024
"""Axes longer than this are cut into blocks with a factor each."""


class Shampoo(Copies, ScalableShampoo):
    """A factor for each axis of each weight; steps of SGD's size."""

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        damping: float,
        decay: float,
        statistics_every: int,
        inverse_every: int,
        largest: int,
    ) -> None:
        """Hold parameters.

        Args:
            params: Parameters or groups of them.
            lr: Learning rate, SGD's.
            momentum: Factor of the momentum buffer, SGD's.
            weight_decay: Factor of the L2 penalty, SGD's.
            damping: Ridge of the factors, in units of their largest eigenvalue.
            decay: How much of the statistics survives a new gradient.
            statistics_every: Steps from one gradient that enters the statistics to the next.
            inverse_every: Steps from one inverse to the next.
            largest: Weights with a longer axis are not preconditioned.
        """
        super().__init__(
            params,
            lr=lr,
            betas=(momentum, decay),
            weight_decay=weight_decay,
            start_preconditioning_step=1,
            preconditioning_compute_steps=inverse_every,
            statistics_compute_steps=statistics_every,
            block_size=BLOCK,
            no_preconditioning_for_layers_with_dim_gt=largest,
            shape_interpretation=False,
            graft_type=LayerWiseGrafting.SGD,
            nesterov=False,
            matrix_eps=damping,
        )

    def init_group(self, group: dict[str, Any], **_: Any) -> None:
        """Make the state of parameters that have a gradient for the first time.

        Args:
            group: The group.
        """
        group.setdefault("step", -1)  # the package counts on before it looks: the first step is 0, due for an inverse
        for parameter in group["params"]:
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter] = self._fresh(parameter.detach(), group)

    def _fresh(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        graft = build_graft(weight, self.graft_type)
        factors = PreConditioner(
            weight,
            group["betas"][1],
            self.inverse_exponent_override,
            self.block_size,
            self.skip_preconditioning_rank_lt,
            self.no_preconditioning_for_layers_with_dim_gt,
            self.shape_interpretation,
            self.pre_conditioner_type,
            self.matrix_eps,
        )
        return {"momentum": graft.momentum.clone(), "pre_conditioner": factors, "graft": graft}

    def state_dict(self) -> dict[str, Any]:
        """Torch's, with tensors in place of the package's objects."""
        packed: dict[str, Any] = super().state_dict()
        return {**packed, "state": {key: _tensors(state) for key, state in packed["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Args:
            state_dict: What `state_dict` returned.
        """
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.state:
                    saved, state = self.state[parameter], self._fresh(parameter.detach(), group)
                    state["momentum"] = saved["momentum"]
                    state["graft"].momentum = saved["graft_momentum"]
                    state["pre_conditioner"].statistics = saved["statistics"]
                    state["pre_conditioner"].pre_conditioners = saved["inverses"]
                    self.state[parameter] = state


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "momentum": state["momentum"],
        "graft_momentum": state["graft"].momentum,
        "statistics": state["pre_conditioner"].statistics,
        "inverses": state["pre_conditioner"].pre_conditioners,
    }
