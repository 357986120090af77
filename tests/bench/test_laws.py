"""Laws over the table of methods: whatever is added to it keeps them, or says here, as data, why it cannot.

The network is one that every method has something to do with: a convolution, a hidden and an output layer. Its axes
are about as long as each other, so that every factor a method may form of one batch has a definite eigenbasis.
"""

import copy
import io
import itertools
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.lr_scheduler import LambdaLR

from fngd_bench import models, optimizers
from fngd_bench.errors import InputError
from fngd_bench.optimizers import METHODS
from fngd_bench.optimizers.domains import COUNT, DOMAINS, FRACTION, POSITIVE, POWER

SHORT = {"statistics_every": 2, "inverse_every": 4, "every": 3}
"""Intervals that a handful of steps cross; a method takes those it knows."""
POSITION = {
    "fngd": "c̃ has a number for each position in the batch",
    "fngd-refreshed": "c̃ has a number for each position in the batch",
    "fngd-damped": "c̃ has a number for each position in the batch",
    "fngd-adamw": "c̃ has a number for each position in the batch",
}
"""Methods whose sharing steps weight a sample by its place in the batch, which is what sharing means."""
ROUNDING = {"soap": 1e-6}
"""Its QR decomposition is in float32, whatever the parameters are in."""
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def _one_thread():
    """The tensors are small: more threads only wait for each other, and for long where other work is done."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 5)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.output(self.hidden(self.first(x).tanh().mean((2, 3))).tanh())


def network(dtype=torch.float64):
    torch.manual_seed(1)
    return Network().to(dtype)


def batches(count, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(12, 2, 5, 5, generator=generator, dtype=dtype), torch.randint(5, (12,), generator=generator))
        for _ in range(count)
    ]


def made(name, model, *, steps_per_epoch=3, params=None, **changes):
    row = METHODS[name]
    known = {key: value for key, value in {**SHORT, **changes}.items() if key in row.recipe}
    return optimizers.make(row, model, optimizers.resolve(row, "images", known), steps_per_epoch, params)


def step(name, model, optimizer, x, y, error=cross_entropy):
    optimizer.zero_grad()
    loss = error(model(x), y)
    optimizers.backward(loss, model, second_order=METHODS[name].second_order)
    optimizer.step()
    return loss.item()


def train(name, model, optimizer, data):
    """A step for each batch; some methods draw from torch's generator, which starts anew with every step."""
    for number, (x, y) in enumerate(data):
        torch.manual_seed(number)
        step(name, model, optimizer, x, y)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def moved(before, model):
    return {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}


USED = {f"{layer}.{kind}" for layer in ("first", "hidden", "output") for kind in ("weight", "bias")}


@every_method
def test_the_loss_falls_on_a_quadratic(name):
    model, wanted = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    x = torch.randn(32, 4, dtype=torch.float64)
    y = wanted(x).detach() + 0.1 * torch.randn(32, 3, dtype=torch.float64)
    optimizer = made(name, model, steps_per_epoch=10)
    losses = [step(name, model, optimizer, x, y, mse_loss) for _ in range(100)]
    assert losses[-1] < 0.75 * losses[0]


@every_method
def test_the_loss_falls_on_digits(name):
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    classes = torch.tensor(data.target)
    model = models.build("small-cnn")
    optimizer = made(name, model, steps_per_epoch=15, statistics_every=10, inverse_every=100, every=10)
    order = torch.randperm(len(classes))[: 20 * 64].split(64)
    losses = [step(name, model, optimizer, images[chosen], classes[chosen]) for chosen in order]
    assert sum(losses[-3:]) / 3 < 0.75 * losses[0]


@every_method
@pytest.mark.parametrize("after", [2, 3, 5], ids=["deriving", "at the switch", "sharing"])
def test_a_saved_state_goes_on_bit_for_bit(name, after):
    data = batches(10)
    model, fresh = network(), network()
    optimizer = made(name, model)
    train(name, model, optimizer, data[:after])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(name, model, optimizer, data[after:])
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh.load_state_dict(saved["model"])
    other = made(name, fresh)
    other.load_state_dict(saved["optimizer"])
    train(name, fresh, other, data[after:])
    assert same(weights(model), weights(fresh))


@every_method
def test_a_copy_goes_on_bit_for_bit_and_alone(name):
    data = batches(8)
    model = network()
    optimizer = made(name, model)
    train(name, model, optimizer, data[:2])
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    before = weights(model)
    train(name, twin, twin_optimizer, data[2:])
    assert same(before, weights(model))
    train(name, model, optimizer, data[2:])
    assert same(weights(model), weights(twin))


@every_method
def test_the_order_of_samples_does_not_matter_where_each_batch_makes_its_own_statistics(name):
    data = batches(5)
    mixed = [(x[order], y[order]) for x, y in data for order in [torch.randperm(12)]]
    assert apart(name, data, mixed, steps_per_epoch=100, every=1) <= ROUNDING.get(name, 1e-9)


@every_method
def test_the_order_of_samples_matters_to_a_sharing_step_by_position_and_to_no_other(name):
    data = batches(3)
    mixed = [data[0], *((x.flip(0), y.flip(0)) for x, y in data[1:])]
    assert (apart(name, data, mixed, steps_per_epoch=1, every=100) > 1e-6) == (name in POSITION)


def apart(name, data, other, **changes):
    """How far two runs end from each other, in units of the way they went; 1e-16 becomes 1e-12 over some solves."""
    ends = []
    for batch in (data, other):
        model = network()
        train(name, model, made(name, model, **changes), batch)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    start = torch.cat([parameter.detach().flatten() for parameter in network().parameters()])
    return float((ends[0] - ends[1]).norm() / (ends[0] - start).norm())


@every_method
@pytest.mark.parametrize("still", ["first", "output"])
def test_a_group_has_a_learning_rate_of_its_own(name, still):
    model = network()
    held = dict(model.named_parameters())
    chosen = [value for key, value in held.items() if key.startswith(still)]
    rest = [value for key, value in held.items() if not key.startswith(still)]
    optimizer = made(name, model, params=[{"params": rest}, {"params": chosen, "lr": 0.0}])
    before = weights(model)
    train(name, model, optimizer, batches(5))
    assert moved(before, model) == {key for key in USED if not key.startswith(still)}


@every_method
def test_a_scheduler_reaches_every_parameter(name):
    model = network()
    optimizer = made(name, model)
    schedule = LambdaLR(optimizer, lambda number: float(number < 3))
    before = weights(model)
    for x, y in batches(3):
        step(name, model, optimizer, x, y)
        schedule.step()
    assert moved(before, model) == USED
    before = weights(model)
    for x, y in batches(3):
        step(name, model, optimizer, x, y)
        schedule.step()
    assert not moved(before, model)


@every_method
def test_a_closure_is_a_step(name):
    model, twin = network(), network()
    optimizer, other = made(name, model), made(name, twin)
    for number, (x, y) in enumerate(batches(5)):

        def closure(x=x, y=y):
            other.zero_grad()
            loss = cross_entropy(twin(x), y)
            optimizers.backward(loss, twin, second_order=METHODS[name].second_order)
            return loss

        torch.manual_seed(number)
        loss = step(name, model, optimizer, x, y)
        torch.manual_seed(number)
        assert other.step(closure).item() == loss
    assert same(weights(model), weights(twin))


@every_method
def test_what_is_frozen_or_has_no_gradient_stays_as_it_is(name):
    model = network()
    model.first.requires_grad_(requires_grad=False)
    model.hidden.bias.requires_grad_(requires_grad=False)
    optimizer = made(name, model)
    before = weights(model)
    train(name, model, optimizer, batches(6))
    assert moved(before, model) == {"hidden.weight", "output.weight", "output.bias"}


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_parameters_and_state_keep_their_dtype(name, dtype):
    model = network(dtype)
    optimizer = made(name, model)
    for _ in range(2):
        train(name, model, optimizer, batches(5, dtype))
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert {tensor.dtype for tensor in tensors(optimizer.state_dict()["state"]) if tensor.dim()} <= {dtype}
        optimizer.load_state_dict(optimizer.state_dict())


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return list(itertools.chain.from_iterable(map(tensors, inside)))


OUTSIDE = {FRACTION: [1.0, True], POWER: [0.0, 1.5], POSITIVE: [0.0], COUNT: [0, 2.5, True]}
"""What is refused beside what no hyperparameter takes."""


@every_method
def test_bad_hyperparameters_are_refused_by_name(name):
    row, model = METHODS[name], network()
    usual = optimizers.resolve(row, "images", {})
    for key in row.recipe:
        for bad in [-1, math.nan, math.inf, -0.5, "many", *OUTSIDE.get(DOMAINS[key], [])]:
            with pytest.raises(InputError, match=rf"{key}=.* of {name} must be"):
                optimizers.resolve(row, "images", {key: bad})
            with pytest.raises(InputError, match=rf"{key}=.* of {name} must be"):
                optimizers.make(row, model, {**usual, key: bad}, 3)


@every_method
def test_recipes_are_complete_and_their_ranges_hold_them(name):
    row = METHODS[name]
    assert {"lr", "weight_decay"} <= set(row.space)
    for family in ("images", "translation"):
        recipe = optimizers.resolve(row, family, {})
        assert set(recipe) == set(row.recipe)
        for key, span in row.space.items():
            assert recipe[key] == 0.0 or span.low <= recipe[key] <= span.high
