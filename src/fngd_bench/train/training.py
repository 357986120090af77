"""`Training`: the state of a run, and one step of it.

Timed, each as a section of its own: data, forward, backward, update; what a method marks as "precondition" inside one
of them is counted apart (`clock`). Whether the loss is finite is read between forward and backward, where the clock
waits for the accelerator anyway; several ranks agree on it there, so that all make a step or none.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from fngd_bench import clock, optimizers
from fngd_bench.composite import preconditioner
from fngd_bench.errors import InputError
from fngd_bench.optimizers import Method
from fngd_bench.problems import Problem, Score
from fngd_bench.runs.events import RunSettings
from fngd_bench.train.ranks import Ranks
from fngd_bench.train.schedule import factor


class StepResult(NamedTuple):
    """What one step did."""

    loss: float
    """Of the whole batch."""
    seconds: float
    """Timed seconds of the step."""
    skipped: bool
    """Whether the loss was not finite, so that no update was made."""


class Training:
    """A model on its way: the problem, the optimizer and how far they are."""

    def __init__(self, settings: RunSettings, problem: Problem, device: torch.device, ranks: Ranks) -> None:
        """Make the optimizer; nothing has been trained yet.

        Args:
            settings: Resolved settings.
            problem: The problem, its model with fresh weights.
            device: Where to train.
            ranks: Who trains.
        """
        self.settings = settings
        self.problem = problem
        self.device = device
        self.ranks = ranks
        self.model: nn.Module = problem.model.to(device)
        self._part = ranks.part(settings.batch)
        self._wrapped = ranks.wrap(self.model, lambda model: problem.loss(model, problem.batch(0, 0, self._part)))
        if not ranks.first:
            ranks.draw_apart(settings.seed, 0)
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
                batch = self.problem.batch(*divmod(self.step_count, self.settings.steps_per_epoch), self._part)
            with clock.section("forward"):
                loss = self.problem.loss(self._wrapped, batch)
            value = self.ranks.mean(float(loss.detach()))
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
        """Everything that the next steps depend on, as plain numbers and tensors; all ranks ask for it together."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ranks": self.ranks.gather(self._own()),
            "step": self.step_count,
            "seconds": self.seconds,
            "unlucky": self.unlucky,
            "losses": self.losses,
            "sections": self.sections,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Args:
            state: What `state` returned on the first rank. From as many ranks as now, each goes on with its own random
                numbers and coefficients; from another number, all with the first rank's coefficients.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if len(state["ranks"]) == self.ranks.size:
            self._load_own(state["ranks"][self.ranks.rank])
        else:
            self._check_coefficients(len(state["ranks"]))
            self.ranks.draw_apart(self.settings.seed, state["step"])
        self.step_count, self.seconds, self.unlucky = state["step"], state["seconds"], state["unlucky"]
        self.losses, self.sections = list(state["losses"]), dict(state["sections"])

    def _own(self) -> dict[str, Any]:
        """What ranks do not have in common: random numbers, and coefficients while they are derived."""
        natural = preconditioner(self.optimizer)
        return {
            "random": torch.get_rng_state(),
            "device_random": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "natural": None if natural is None else natural.state_dict(),
        }

    def _load_own(self, own: dict[str, Any]) -> None:
        torch.set_rng_state(own["random"])
        if own["device_random"] is not None:
            torch.cuda.set_rng_state(own["device_random"], self.device)
        if (natural := preconditioner(self.optimizer)) is not None:
            natural.load_state_dict(own["natural"])

    def _check_coefficients(self, before: int) -> None:
        """Refuse coefficients that are too few for a rank's part of the batch, now that there are fewer ranks.

        Raises:
            InputError: If there is no coefficient for some of the samples.
        """
        natural, here = preconditioner(self.optimizer), self.settings.batch // self.ranks.size
        if natural is None or natural.phase == "derive":
            return
        lengths = {len(c) for c in natural.coefficients.values()}
        if any(1 < length < here for length in lengths):
            raise InputError(
                f"ranks={self.ranks.size}: {self.method.name} has derived coefficients for {max(lengths)} samples a "
                f"rank on {before} ranks, and a rank would now have {here}: resume with {before} ranks or more"
            )

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
