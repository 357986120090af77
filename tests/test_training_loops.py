"""Unchanged loops give what the formulas say: each is run twice, once as it is and once with gradients by the formula.

The second run has a plain model under torch.optim.SGD. Where the loop says backward, `Formula` computes every sample's
gradient alone, the coefficients of the policy's definition, and their weighted sum. All of it in float64.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler, swa_utils

import fngd
import formulas
import reference
from formulas import Formula
from reference import relative_error

POLICIES = [
    fngd.Shared(3),
    fngd.Constant(3),
    fngd.Refreshed(2, 0.5),
    fngd.Fresh(),
    fngd.FromHead(),
    fngd.FromHead(rhs="residual"),
]
SIZE = 6


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batches(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for size in sizes:
        x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
        yield x, torch.randint(3, (size,), generator=generator)


def by_the_library(policy, loop, **settings):
    model = network()

    def optimizer(groups=None, **chosen):
        return fngd.FNGD(model, groups, policy=policy, **{"lr": 0.3, "momentum": 0.9, **settings, **chosen})

    def backward(x, y, factor=1.0):
        (factor * cross_entropy(model(x), y)).backward()

    return model, loop(model, optimizer, backward)


def by_the_formula(policy, loop, **settings):
    model = network()
    formula = Formula(model, policy)

    def optimizer(groups=None, **chosen):
        groups = model.parameters() if groups is None else groups
        made = torch.optim.SGD(groups, **{"lr": 0.3, "momentum": 0.9, **settings, **chosen})
        made.register_step_post_hook(formula.count)
        return made

    return model, loop(model, optimizer, formula.backward)


def check(policy, loop):
    mine, seen = by_the_library(policy, loop)
    theirs, expected = by_the_formula(policy, loop)
    assert relative_error(reference.flat(mine.parameters()), reference.flat(theirs.parameters())) <= 1e-10
    assert seen == (None if expected is None else pytest.approx(expected, rel=1e-9))


# Loops: each is what a user would write, but for `backward`, which is the model, the loss and its backward pass


def plain(model, optimizer, backward):
    rule = optimizer(weight_decay=1e-2, nesterov=True)
    for x, y in batches(*[SIZE] * 6):
        rule.zero_grad()
        backward(x, y)
        rule.step()


def accumulated(model, optimizer, backward):
    """Two micro-batches a step, and one more, shorter, at the end."""
    rule, k = optimizer(), 2
    for number, (x, y) in enumerate(batches(*[SIZE] * 9, 4), 1):
        backward(x, y, 1 / k)
        if number % k == 0:
            rule.step()
            rule.zero_grad()


def accumulated_in_place(model, optimizer, backward):
    rule = optimizer()
    for number, (x, y) in enumerate(batches(*[SIZE] * 9), 1):
        backward(x, y, 1 / 3)
        if number % 3 == 0:
            rule.step()
            rule.zero_grad(set_to_none=False)
            assert all((p.grad == 0).all() for p in model.parameters())


def clipped_by_norm(model, optimizer, backward):
    rule, norms = optimizer(), []
    for x, y in batches(*[SIZE] * 6):
        rule.zero_grad()
        backward(x, y)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
        rule.step()
    assert max(norms) > 0.05
    return norms


def clipped_by_value(model, optimizer, backward):
    rule = optimizer()
    for x, y in batches(*[SIZE] * 6):
        rule.zero_grad()
        backward(x, y)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        rule.step()


def in_groups(model, optimizer, backward):
    rule = optimizer(
        [
            {"params": model[0].parameters(), "lr": 0.5, "weight_decay": 0.1},
            {"params": [model[2].weight, model[4].weight], "momentum": 0.0},
            {"params": [model[2].bias, model[4].bias], "weight_decay": 0.0},
        ],
        weight_decay=0.05,
    )
    for x, y in batches(*[SIZE] * 5):
        rule.zero_grad()
        backward(x, y)
        rule.step()


def by_closure(model, optimizer, backward):
    rule = optimizer()
    for x, y in batches(*[SIZE] * 5):

        def closure(x=x, y=y):
            rule.zero_grad()
            backward(x, y)
            return 0.0

        rule.step(closure)


def frozen_for_a_while(model, optimizer, backward):
    rule = optimizer()
    for number, (x, y) in enumerate(batches(*[SIZE] * 8)):
        model[2].requires_grad_(requires_grad=number not in (1, 2, 4, 5))
        rule.zero_grad()
        backward(x, y)
        rule.step()


def evaluated_on_the_way(model, optimizer, backward):
    """Between forward and backward passes too, on batches of another size."""
    rule, losses = optimizer(), []
    (held_out,) = batches(11, seed=7)
    for x, y in batches(*[SIZE] * 5):
        rule.zero_grad()
        backward(x, y)
        model.eval()
        with torch.no_grad():
            losses.append(cross_entropy(model(held_out[0]), held_out[1]).item())
        model.train()
        rule.step()
    return losses


def without_a_step_now_and_then(model, optimizer, backward):
    """As a loop does that skips what it does not like: what was derived counts in c̃, the step does not."""
    rule = optimizer()
    for number, (x, y) in enumerate(batches(*[SIZE] * 7)):
        rule.zero_grad()
        backward(x, y)
        if number not in (1, 4):
            rule.step()


def of_uneven_batches(model, optimizer, backward):
    rule = optimizer()
    for x, y in batches(6, 6, 2, 6, 6, 2, 6, 1):
        rule.zero_grad()
        backward(x, y)
        rule.step()


LOOPS = [
    plain,
    accumulated,
    accumulated_in_place,
    clipped_by_norm,
    clipped_by_value,
    in_groups,
    by_closure,
    frozen_for_a_while,
    evaluated_on_the_way,
    without_a_step_now_and_then,
    of_uneven_batches,
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_loop_gives_what_the_formulas_say(loop, policy):
    check(policy, loop)


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.5, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, 8),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 2), lr_scheduler.CosineAnnealingLR(o, 6)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=3),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_acts_as_it_does_on_sgd(name):
    def loop(model, optimizer, backward):
        rule, seen = optimizer(), []
        scheduler = SCHEDULERS[name](rule)
        for x, y in batches(*[SIZE] * 6):
            rule.zero_grad()
            backward(x, y)
            rule.step()
            scheduler.step(*[1.0] if name == "ReduceLROnPlateau" else [])
            seen += [rule.param_groups[0]["lr"], rule.param_groups[0]["momentum"]]
        assert len(set(seen[::2])) > 1
        assert name not in ("CyclicLR", "OneCycleLR") or len(set(seen[1::2])) > 1
        return seen

    check(fngd.Shared(3), loop)


def test_every_scheduler_of_torch_is_among_them():
    known = {*lr_scheduler.__all__} - {"LRScheduler"}
    assert known <= set(SCHEDULERS)


def test_accumulation_derives_for_as_many_optimizer_steps_as_it_is_told():
    k, loader = 4, list(batches(*[SIZE] * 12))
    model = network()
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=len(loader) // k)
    phases = []
    for x, y in loader * 2:
        phases.append(optimizer.phase)
        (cross_entropy(model(x), y) / k).backward()
        if len(phases) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert phases == ["derive"] * 12 + ["share"] * 12
    assert {s.batches for s in optimizer.statistics().values()} == {12}


def gradient_of(model, name):
    return reference.flat([p.grad for p in model.get_submodule(name).parameters()])


def natural(U):
    return U @ reference.coefficients(U, reference.damping(U, 0.005)) / U.shape[1]


@pytest.mark.parametrize("phase", ["derive", "share"])
def test_two_losses_through_one_graph_are_weighted_each_by_its_own(phase):
    def second(output, y):
        return (output.square().sum(1) * (1 + y)).mean()

    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1)
    ((x, y),) = batches(SIZE)
    if phase == "share":
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    twin, output = copy.deepcopy(model), model(x)
    cross_entropy(output, y).backward(retain_graph=True)
    second(output, y).backward()
    for name in formulas.layers(twin):
        U = [formulas.columns(twin, x, y, name, loss) for loss in (cross_entropy, second)]
        c = optimizer.coefficients[name]
        expected = sum(natural(part) if phase == "derive" else part @ c / SIZE for part in U)
        assert relative_error(gradient_of(model, name), expected) <= 1e-10
    assert {s.batches for s in optimizer.statistics().values()} == {2 if phase == "derive" else 1}


@pytest.mark.filterwarnings("ignore:fngd. layer '0' is used outside of the model")
def test_part_of_the_model_can_be_called_for_a_loss_of_its_own():
    """Each call is a batch of its own; what it adds to p.grad adds up."""
    model = network()
    optimizer = fngd.FNGD(model, lr=0.0, derive_steps=1)
    twin, ((x, y), (other, _)) = copy.deepcopy(model), batches(SIZE, 4)
    (cross_entropy(model(x), y) + model[0](other).square().sum(1).mean()).backward()
    aside = reference.alone(twin[0], lambda o, _: o.square().sum(1).mean(), [other], y[:4], list(twin[0].parameters()))
    expected = natural(formulas.columns(twin, x, y, "0")) + natural(aside)
    assert relative_error(gradient_of(model, "0"), expected) <= 1e-10
    assert optimizer.statistics()["0"].batches == 2
    assert optimizer.statistics()["2"].batches == 1


@pytest.mark.parametrize("frozen", [True, False])
def test_two_networks_against_each_other(frozen):
    """The critic sees two batches a step, each with coefficients of its own; the maker's go through the critic.

    If the critic is not frozen meanwhile, it derives from the maker's loss as well.
    """
    torch.manual_seed(1)
    maker, critic = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double(), network()
    plain_maker, plain_critic = copy.deepcopy((maker, critic))
    first, second = (fngd.FNGD(model, lr=0.0, derive_steps=2) for model in (maker, critic))
    ((real, y),), noise = batches(SIZE), torch.randn(SIZE, 4, dtype=torch.float64)
    made = maker(noise)
    (cross_entropy(critic(real), y) + cross_entropy(critic(made.detach()), y.flip(0))).backward()
    U = [formulas.columns(plain_critic, x, t, "0") for x, t in ((real, y), (made.detach(), y.flip(0)))]
    assert relative_error(gradient_of(critic, "0"), natural(U[0]) + natural(U[1])) <= 1e-10
    second.step()

    critic.requires_grad_(requires_grad=not frozen)
    cross_entropy(critic(made), y).backward()
    both = nn.Sequential(plain_maker, plain_critic)
    for name in ("0", "2"):
        expected = natural(formulas.columns(both, noise, y, f"0.{name}"))
        assert relative_error(gradient_of(maker, name), expected) <= 1e-10
    first.step()
    assert {s.batches for s in second.statistics().values()} == {2 if frozen else 3}
    assert (first.preconditioner.step_count, second.preconditioner.step_count) == (1, 1)


def test_lbfgs_sees_the_weighted_gradient_and_its_steps_are_counted():
    model = network()
    twin, ((x, y),) = copy.deepcopy(model), batches(SIZE)
    rule = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=1)

    def closure():
        rule.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    with fngd.NaturalGradient(model, rule, derive_steps=1) as preconditioner:
        rule.step(closure)
        assert preconditioner.phase == "share"
        g = torch.cat([natural(formulas.columns(twin, x, y, name)) for name in formulas.layers(twin)])
        expected = reference.flat(twin.parameters()) - min(1.0, 1.0 / g.abs().sum()) * 0.5 * g
        assert relative_error(reference.flat(model.parameters()), expected) <= 1e-10
        rule.step(closure)


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()


AVERAGES = {
    "mean": ({}, lambda seen: torch.stack(seen).mean(0)),
    "ema": (
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
        lambda seen: sum(
            0.9 ** (len(seen) - 1 - i) * (0.1 if i else 1.0) * parameters for i, parameters in enumerate(seen)
        ),
    ),
}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("kind", AVERAGES)
def test_averaged_models_are_plain_and_average(kind, policy):
    arguments, expected = AVERAGES[kind]
    model = normed()
    optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, policy=policy)
    averaged, seen, loader = swa_utils.AveragedModel(model, **arguments), [], list(batches(*[SIZE] * 5))
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        averaged.update_parameters(model)
        seen.append(reference.flat([p.detach().clone() for p in model.parameters()]))
    assert relative_error(reference.flat(averaged.module.parameters()), expected(seen)) <= 1e-12
    assert [type(module) for module in averaged.module] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    before = optimizer.statistics()
    swa_utils.update_bn(loader, averaged)
    x = torch.cat([x for x, _ in loader])
    mean = averaged.module[0](x).mean(0)
    assert relative_error(averaged.module[1].running_mean, mean) <= 1e-10
    cross_entropy(averaged(x), torch.cat([y for _, y in loader])).backward()
    assert optimizer.statistics() == before
    swa_utils.update_bn(loader, model)
    assert optimizer.statistics() == before
