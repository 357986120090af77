"""What a layer rule is handed: `Layer`, one preconditioned layer with its coefficients.

A rule computes a module's forward pass with `layer.linear` and `layer.convolution` in place of torch's functions of
the same name. The layer finds the samples in the input, takes or derives the coefficients, and sees to it that
`backward()` leaves the weighted gradient in `p.grad`.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fngd.autocast import cast_as_autocast, without_autocast
from fngd.history import History
from fngd.layers import compiled
from fngd.layers.derivation import Derived, Uses, derive, known_sums, weighted_gradients
from fngd.layers.parts import Label, Part, check_whole, part_of
from fngd.layers.registry import Place, parameters_at
from fngd.layers.run import Run
from fngd.layers.sharing import Sharing
from fngd.nodes import Deriving, Join, Notes, put
from fngd.operations import Convolution, Linear, Operation, Samples

MOST_SHAPES = 64
"""Input shapes a layer keeps in mind."""
STRAY = (
    "fngd: layer {name!r} is used outside of the model's forward pass: such a use is a batch of its own, and what the "
    "layer's own input has in its batch dimension are the samples. If that is not what you mean, call the model, or "
    "give the optimizer the module that you call. Said once"
)


class Layer:
    """One preconditioned layer: the parameters that share a vector of coefficients, and these coefficients.

    A rule, the function under `fngd.register_layer`, is handed one.

    Example:
        >>> import torch, fngd
        >>> class Scaled(torch.nn.Linear):
        ...     def forward(self, x: torch.Tensor) -> torch.Tensor:
        ...         return torch.nn.functional.linear(2 * x, self.weight, self.bias)
        >>> @fngd.register_layer(Scaled)
        ... def scaled(module: Scaled, layer: fngd.Layer, x: torch.Tensor) -> torch.Tensor:
        ...     return layer.linear(2 * x, module.weight, module.bias)
    """

    def __init__(self, name: str, places: Sequence[Place], run: Run) -> None:
        """A layer that has seen no batch yet.

        Args:
            name: The module's name in the model.
            places: Where the parameters are whose gradients are weighted together.
            run: What it shares with the other layers.
        """
        self.name = name
        self.places: list[Place] = list(places)
        self.run = run
        self._history: History = History()
        self.sharing: Sharing = Sharing(name)
        self.number: Tensor = compiled.number(self)
        """By which compiled graphs find the layer."""
        self.place: str = ""
        """Where the forward pass under way has used it while deriving: "eager", or in a "graph" of a part of it."""
        run.layers.append(self)
        self._operations: dict[Hashable, Operation] = {}
        self._scale: Tensor | None = None
        """What the gradients of the latest batch had to be divided by; to the bit, nothing depends on it."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters, as they are at this moment: FSDP has others inside of a forward pass."""
        return parameters_at(self.places)

    @property
    def history(self) -> History:
        """What the layer's batches have said so far."""
        self.run.settle()
        return self._history

    @history.setter
    def history(self, history: History) -> None:
        self.run.settle()
        self._history = history

    @property
    def trainable(self) -> bool:
        """Whether there is anything to weight."""
        return any(parameter.requires_grad for parameter in self.parameters)

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        batch_dim: int | None = None,
        batch: int | None = None,
    ) -> Tensor:
        """`torch.nn.functional.linear` with weighted parameter gradients.

        Args:
            x: Input, (*, d_in).
            weight: A parameter of the layer or a view of one, (d_out, d_in).
            bias: Likewise, (d_out,).
            batch_dim: The dimension of x that counts the samples; the run's by default.
            batch: The number of samples; that of the model's batch by default.

        Returns:
            x weightᵀ + bias.
        """
        batch = self.run.at_hand if batch is None else batch
        key = (x.shape, batch, batch_dim)
        operation = None if torch.compiler.is_dynamo_compiling() else self._operations.get(key)
        if operation is None:
            if not self.trainable:
                return F.linear(x, weight, bias)
            check_whole(weight, self.name)
            if x.dim() == 1:
                return self.linear(x.unsqueeze(0), weight, bias, 0, batch=1).squeeze(0)
            batch_dim = self.run.settings.batch_dim if batch_dim is None else batch_dim
            operation = self._remember(key, Linear(self._samples(x, x.shape[:-1], batch_dim, batch)))
        return self.apply(operation, x, weight, bias)

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> Tensor:
        """A 1-, 2- or 3-dimensional convolution with weighted parameter gradients.

        Args:
            x: Input, (M, channels, *space), or without M: then it is one sample.
            weight: A parameter of the layer, (d_out, channels / groups, *kernel).
            bias: Likewise, (d_out,).
            stride: Step of the kernel, a number for each dimension of space.
            padding: Zeros on both sides, likewise.
            dilation: Spacing of the kernel, likewise.
            groups: Groups of channels that do not see each other.

        Returns:
            What `torch.nn.functional.conv1d`, `conv2d` or `conv3d` returns.
        """
        batch, alone = self.run.at_hand, x.dim() == weight.dim() - 1
        key = (x.shape, batch, stride, padding, dilation, groups)
        operation = None if torch.compiler.is_dynamo_compiling() else self._operations.get(key)
        if operation is None:
            check_whole(weight, self.name)
            samples = Samples(0, 1 if alone else len(x))
            if self.trainable and not alone:
                samples = self._samples(x, x.shape[:1], 0, batch)
            operation = Convolution(samples, stride, padding, dilation, groups=groups)
            if self.trainable:
                self._remember(key, operation)
        if alone:
            return self.apply(operation, x.unsqueeze(0), weight, bias).squeeze(0)
        return self.apply(operation, x, weight, bias)

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operation, in a graph that returns weighted gradients."""
        if not self.run.deriving:
            return self.sharing.apply(operation, x, weight, bias, self.run.scratch)
        if torch.compiler.is_dynamo_compiling():
            return self._derive_in_graph(operation, x, weight, bias)
        return self._derive(operation, x, weight, bias)

    def finish(self, parameters: Sequence[nn.Parameter], uses: Uses) -> tuple[Tensor | None, ...]:
        """Derive the coefficients from all uses of a batch and return the weighted gradient of each parameter."""
        if not uses:
            return tuple(None for _ in parameters)
        with without_autocast(uses[0][0].z.device):
            empty = any(use.x.numel() == 0 or use.z.numel() == 0 for use, _ in uses)
            if empty:
                return weighted_gradients(uses, uses[0][0].z.new_ones(1), parameters, self.run.scratch, {})
            derived = self._derived(uses)
            return weighted_gradients(uses, derived.factors, parameters, self.run.scratch, known_sums(derived))

    def refresh(self) -> None:
        """Take what sharing steps use from the history."""
        scale_by_damping = self.run.settings.scale_by_damping
        self.sharing.take(self.history, self.run.policy, scale_by_damping=scale_by_damping)

    def part(self, t: Tensor, parameters: Sequence[nn.Parameter]) -> Part | None:
        """Which piece of which of the layer's parameters t is; None if that parameter is frozen."""
        try:
            return part_of(t, parameters)
        except LookupError as error:
            raise RuntimeError(
                f"fngd: the rule of layer {self.name!r} must pass the module's own parameters, but {error}"
            ) from error

    def _derive(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operation, in a graph that derives the coefficients on its way back."""
        parameters = self.parameters
        label = Label(self.part(weight, parameters), None if bias is None else self.part(bias, parameters))
        if label == (None, None):
            return operation.forward(x, weight, bias)
        token, notes = self._noted(parameters)
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        x, weight, bias = cast_as_autocast(x, weight, bias)
        output: Tensor = put(Deriving, operation, notes, label, x, token, weight, bias)
        self.run.hold(x, output)
        return output

    def _derive_in_graph(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same in a graph that torch.compile makes."""
        if not weight.requires_grad and (bias is None or not bias.requires_grad):
            return operation.forward(x, weight, bias)
        if self.run.traced:
            opened = self.run.open()
            if self not in opened:
                opened[self] = (compiled.join(self.number, *self.parameters), None)
            token, _ = opened[self]
        else:
            self._claim("graph")
            token = compiled.join(self.number, *self.parameters)
        return compiled.use(compiled.static(operation), token, x, weight, bias)

    def _noted(self, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Notes]:
        """The token and the notes that all uses of the layer in this forward pass share."""
        if self.run.outside and not self.run.strayed:
            self.run.strayed = True
            warnings.warn(STRAY.format(name=self.name), stacklevel=2)
        opened = self.run.open()
        token, notes = opened.get(self, (None, None))
        if notes is not None and notes.finished:
            warnings.warn(
                f"fngd: layer {self.name!r} is used in several parts of the model that are checkpointed one by one "
                "(use_reentrant=True): coefficients are derived from each part alone. With use_reentrant=False they "
                "are derived from all of them",
                stacklevel=2,
            )
        if token is None or notes is None or notes.finished:
            self._claim("eager")
            notes = Notes(partial(self.finish, parameters))
            token = put(Join, notes, *parameters)
            opened[self] = (token, notes)
        return token, notes

    def _claim(self, place: str) -> None:
        """Note down where the forward pass under way uses the layer: in one graph, or in none.

        Raises:
            RuntimeError: If it is used in a compiled part of the model and somewhere else.
        """
        if not self.run.inside:
            return
        if self.place and "graph" in (place, self.place):
            raise RuntimeError(
                f"fngd: layer {self.name!r} is used in a compiled part of the model and once more outside of it, so "
                "that no part sees all of its gradient: compile the whole model, or none of what uses the layer, or "
                f"derive under torch.compiler.set_stance('force_eager'), or pass exclude=[{self.name!r}]"
            )
        self.place = place

    def _derived(self, uses: Uses) -> Derived:
        """What this batch says; it is reported."""
        try:
            derived = derive(uses, self.run.settings, self.run.budget, self.run.scratch, self._scale)
        except ValueError as error:
            raise RuntimeError(
                f"fngd: layer {self.name!r} {error}, which is not supported: pass exclude=[{self.name!r}]"
            ) from error
        self._scale = derived.scale
        self.run.note(self._history, derived.report)
        if self.run.watch is not None:
            self.run.watch(self.name, derived.K / derived.report.norm)
        return derived

    def _remember(self, key: Hashable, operation: Operation) -> Operation:
        """Keep what was found out about an input's shape: in Python, a look-up costs less than finding out again."""
        if torch.compiler.is_dynamo_compiling():
            return operation
        if len(self._operations) >= MOST_SHAPES:
            self._operations.clear()
            self.sharing.forget_shapes()
        self._operations[key] = operation
        return operation

    def _samples(self, x: Tensor, leading: Sequence[int], batch_dim: int, batch: int | None) -> Samples:
        """Where in x the samples of the model's batch are."""
        axis = min(batch_dim, len(leading) - 1)
        size = leading[axis]
        if batch is None or size == batch:
            return Samples(axis, size)
        if batch > 0 and size > 0 and size % batch == 0:
            return Samples(axis, batch, size // batch, sample_major=batch_dim == 0)
        return self.misfit(
            f"layer {self.name!r} got an input of shape {tuple(x.shape)}: {size} entries in dimension {axis} are no "
            f"multiple of the model's batch of {batch} samples (dimension {self.run.settings.batch_dim} of its first "
            f"input). If the samples lie in another dimension, pass batch_dim=…; if this layer does not see samples at "
            f"all, pass exclude=[{self.name!r}]",
            Samples(axis, size),
        )

    def misfit(self, message: str, _: Samples) -> Samples:
        """An input does not fit the batch: stop; the doctor goes on with what would have been taken otherwise."""
        raise RuntimeError(f"fngd: {message}")
