"""`Training`: the state of a run, and one step of it.

Timed, each as a section of its own: data, forward, backward, update; what a method marks as "precondition" inside one
of them is counted apart (`clock`). Whether the loss is finite is read between forward and backward, where the clock
waits for the accelerator anyway.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from fngd_bench import clock, optimizers
from fngd_bench.optimizers import Method
from fngd_bench.problems import Problem, Score
from fngd_bench.runs.events import RunSettings
from fngd_bench.train.schedule import factor


class StepResult(NamedTuple):
    """What one step did."""

    loss: float
    seconds: float
    """Timed seconds of the step."""
    skipped: bool
    """Whether the loss was not finite, so that no update was made."""


class Training:
    """A model on its way: the problem, the optimizer and how far they are."""

    def __init__(self, settings: RunSettings, problem: Problem, device: torch.device) -> None:
        """Make the optimizer; nothing has been trained yet.

        Args:
            settings: Resolved settings.
            problem: The problem, its model with fresh weights.
            device: Where to train.
        """
        self.settings = settings
        self.problem = problem
        self.device = device
        self.model: nn.Module = problem.model.to(device)
        self.method: Method = optimizers.method(settings.method)
        self.optimizer: Optimizer = optimizers.make(
            self.method, self.model, settings.hyperparameters, settings.steps_per_epoch
        )
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.step_count = 0
        self.seconds = 0.0
        """Timed seconds so far."""
        self.unlucky = 0
        """Steps in a row whose loss was not finite."""
        self.losses: list[float] = []
        """Of the epoch under way."""
        self.sections: dict[str, float] = {}
        """Timed seconds of the epoch under way, by section."""

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.settings.epochs * self.settings.steps_per_epoch

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self.step_count // self.settings.steps_per_epoch

    @property
    def lr(self) -> float:
        """Learning rate of the latest step, of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self) -> StepResult:
        """One training step."""
        self._set_rates()
        watch = clock.Stopwatch()
        with clock.collection_paused(), watch.running():
            with clock.section("data"):
                batch = self.problem.batch(*divmod(self.step_count, self.settings.steps_per_epoch))
            with clock.section("forward"):
                loss = self.problem.loss(self.model, batch)
            value = float(loss.detach())
            if finite := math.isfinite(value):
                with clock.section("backward"):
                    optimizers.backward(loss, self.model, second_order=self.method.second_order)
                with clock.section("update"):
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        self._count(value, watch)
        return StepResult(value, watch.total, not finite)

    def evaluate(self) -> Score:
        """The test, in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            score = self.problem.evaluate()
        self.model.train()
        return score

    def start_epoch(self) -> None:
        """Turn a new page."""
        self.losses, self.sections = [], {}

    def state(self) -> dict[str, Any]:
        """Everything that the next steps depend on, as plain numbers and tensors."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "device_random": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            "step": self.step_count,
            "seconds": self.seconds,
            "unlucky": self.unlucky,
            "losses": self.losses,
            "sections": self.sections,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Args:
            state: What `state` returned.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        if state["device_random"]:
            torch.cuda.set_rng_state_all(state["device_random"])
        self.step_count, self.seconds, self.unlucky = state["step"], state["seconds"], state["unlucky"]
        self.losses, self.sections = list(state["losses"]), dict(state["sections"])

    def _set_rates(self) -> None:
        scale = factor(self.settings.schedule, self.step_count, self.total)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * scale

    def _count(self, loss: float, watch: clock.Stopwatch) -> None:
        self.step_count += 1
        self.seconds += watch.total
        self.unlucky = 0 if math.isfinite(loss) else self.unlucky + 1
        self.losses.append(loss)
        for name, seconds in watch.seconds.items():
            self.sections[name] = self.sections.get(name, 0.0) + seconds
