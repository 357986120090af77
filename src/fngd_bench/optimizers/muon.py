"""Muon as it is meant to be used: hidden weights orthogonalised, everything else under AdamW.

torch.optim.Muon takes matrices only. A convolution's weight (d_out, d_in, height, width) is the matrix
(d_out, d_in · height · width) to it; `MatrixMuon` hands torch's own update that view. Embeddings, the last layer,
norms and biases are AdamW's. The updates are scaled to the size of AdamW's (Liu et al., 2025, "Muon is scalable for
LLM training"), so that one learning rate and one weight decay serve both parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim._muon import DEFAULT_A, DEFAULT_B, DEFAULT_C, DEFAULT_NS_STEPS, EPS, muon
from torch.optim.optimizer import ParamsT

from fngd_bench.composite import Composite

Groups = list[dict[str, Any]]


class MatrixMuon(Optimizer):
    """torch.optim.Muon for weights of two or more dimensions."""

    def __init__(self, params: ParamsT, *, lr: float, momentum: float, weight_decay: float) -> None:
        """Hold weights, each (d_out, …).

        Args:
            params: The weights or groups of them.
            lr: Learning rate, of AdamW's size.
            momentum: Factor of the momentum buffer, Nesterov's.
            weight_decay: Decoupled weight decay.
        """
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every weight that has a gradient.

        Args:
            closure: Computes the loss and its gradients anew.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        held = [weight for weight in group["params"] if weight.grad is not None]
        for weight in held:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(_rows(weight, weight))
        muon(
            [_rows(weight, weight).view(len(weight), -1) for weight in held],
            [_rows(weight, weight.grad).reshape(len(weight), -1) for weight in held],
            [self.state[weight]["momentum_buffer"].view(len(weight), -1) for weight in held],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            nesterov=True,
            ns_coefficients=(DEFAULT_A, DEFAULT_B, DEFAULT_C),
            ns_steps=DEFAULT_NS_STEPS,
            eps=EPS,
            adjust_lr_fn="match_rms_adamw",
            has_complex=False,
        )


def _rows(weight: Tensor, t: Tensor) -> Tensor:
    """`t` with the axes of `weight` in the order they lie in memory, (d_out, …): its rows can be viewed flat.

    A channels-last weight has its input channels last. The order of a matrix's columns does not matter to Muon.
    """
    t = t.detach()
    return t if weight.is_contiguous() else t.movedim(1, -1)


class Muon(Composite):
    """Muon for the hidden weights, AdamW for the other parameters."""

    def __init__(
        self,
        model: nn.Module,
        params: ParamsT | None = None,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Share out the parameters.

        Args:
            model: The model to train.
            params: Parameters or groups of them; all of the model's by default.
            lr: Learning rate of both parts.
            momentum: Muon's.
            weight_decay: Decoupled, of both parts.
            betas: AdamW's.
            eps: AdamW's.
        """
        groups = _groups(model.parameters() if params is None else params)
        matrices = {id(weight) for weight in hidden(model)}
        hidden_groups = _chosen(groups, lambda parameter: id(parameter) in matrices)
        other_groups = _chosen(groups, lambda parameter: id(parameter) not in matrices)
        parts: list[Optimizer] = []
        if hidden_groups:
            parts.append(MatrixMuon(hidden_groups, lr=lr, momentum=momentum, weight_decay=weight_decay))
        if other_groups:
            parts.append(AdamW(other_groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True))
        super().__init__(parts)


def hidden(model: nn.Module) -> list[nn.Parameter]:
    """The weights that Muon is for: all but embeddings and the last one, which is the output layer's.

    Args:
        model: The model.

    Returns:
        Weights of two or more dimensions, in the model's order. A model with one weight keeps it.
    """
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    weights = [p for p in model.parameters() if p.dim() > 1 and id(p) not in tables]
    return weights[:-1] if len(weights) > 1 else weights


def _groups(params: ParamsT) -> Groups:
    listed: list[Any] = list(params)
    groups = listed if listed and isinstance(listed[0], dict) else [{"params": listed}]
    return [{**group, "params": _list(group["params"])} for group in groups]


def _list(params: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [params] if isinstance(params, Tensor) else list(params)


def _chosen(groups: Iterable[dict[str, Any]], wanted: Callable[[Tensor], bool]) -> Groups:
    """The groups with only the wanted parameters; empty ones are left out."""
    chosen = [{**group, "params": [p for p in group["params"] if wanted(p)]} for group in groups]
    return [group for group in chosen if group["params"]]
