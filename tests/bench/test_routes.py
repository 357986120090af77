"""`bench routes` times what it says: every possible route of every shape, the planner's among them; then it judges."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from origin import ORIGIN
from torch import nn

import fngd
from fngd.gram import plan_of
from fngd.planner import FULL_BUDGET, LEAST, MOST, ROUTES, Budget, at_most, plan
from fngd.processor import USUAL
from fngd.scratch import Scratch
from fngd_bench import console
from fngd_bench.errors import InputError
from fngd_bench.price import choices, routes
from fngd_bench.price.record import read, write
from fngd_bench.price.routes_record import RoutesRecord, RouteTimes, ShapeTimes
from fngd_bench.price.surroundings import Surroundings
from fngd_bench.price.uses import weights_by_shape
from fngd_bench.report.routes import terminal_table

M = 4
NOT_POSSIBLE = {"kernel", "pixels"}


def tiny():
    """Two weights of one shape, a grouped convolution, an attention, and a layer that is used twice."""
    twice = nn.Linear(8, 8)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 8, 3, stride=2, groups=2),
        nn.Flatten(2),
        Attending(),
        twice,
        nn.ReLU(),
        twice,
    )
    return model.double(), torch.randn(M, 2, 6, 6, dtype=torch.float64)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x.transpose(1, 2)
        return self.attention(x, x, x)[0]


@pytest.fixture(autouse=True)
def _seeded(monkeypatch):
    monkeypatch.setattr(routes, "COLD_BYTES", 2**10)  # nothing here is about times
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def found():
    model, x = tiny()
    return weights_by_shape(model, [x])


def settings(**options):
    return routes.resolve("small-cnn", **{"rounds": 2, "batch": M, **options})


def test_shapes_and_how_many_weights_have_them_are_the_doctors():
    model, x = tiny()
    doctors = Counter(shape for row in fngd.doctor(model, x).rows for shape in row.shapes)
    assert {each.shape: each.count for each in weights_by_shape(model, [x])} == doctors
    assert max(doctors.values()) == 2


def test_inputs_are_those_of_the_forward_pass_and_the_model_is_left_as_it_was():
    model, x = tiny()
    kept, classes = weights_by_shape(model, [x]), [type(module) for module in model.modules()]
    assert classes == [type(module) for module in tiny()[0].modules()]
    assert torch.equal(kept[0].uses[0].x, x)
    assert torch.equal(kept[1].uses[0].x, model[0](x))
    assert [len(each.uses) for each in kept] == [1, 1, 1, 1, 1, 2]
    assert [each.layer for each in kept] == ["0", "1", "4", "6.attention", "6.attention.out_proj", "7"]


def test_drawn_gradients_have_the_outputs_memory_format_and_the_scale_of_a_mean():
    model = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
    x = torch.randn(M, 8, 9, 9).to(memory_format=torch.channels_last)
    (use,) = weights_by_shape(model, [x])[0].drawn(torch.Generator().manual_seed(0))
    output = model(x)
    assert (use.z.shape, use.z.stride()) == (output.shape, output.stride())
    assert use.z.std().item() == pytest.approx(1 / M, rel=0.05)


@pytest.mark.parametrize("number", range(6))
def test_every_route_ends_in_the_weighted_gradient(number):
    uses = found()[number].drawn(torch.Generator().manual_seed(1))
    c, scratch = torch.rand(M, dtype=torch.float64), Scratch()
    weight = uses[0].weight.clone().requires_grad_()
    weighted = [(use, use.z * use.operation.samples.spread(c, use.z.dim())) for use in uses]
    loss = sum((use.operation.forward(use.x, weight, None) * z).sum() for use, z in weighted)
    (expected,) = torch.autograd.grad(loss, weight)
    for route in routes.possible(uses, FULL_BUDGET):
        torch.testing.assert_close(routes.weighted_gradient(uses, c, scratch, FULL_BUDGET, route), expected)


def test_all_possible_routes_of_all_shapes_are_timed_and_the_chosen_one_is_the_planners():
    wanted, shapes, names = settings(), found(), []
    budget = Budget(wanted.budget_bytes, wanted.most_bytes)
    record = routes.measure(wanted, shapes, names.append)
    assert len(names) == routes.pieces(wanted, shapes) == 3 * len(shapes)
    for each, row in zip(shapes, record.measured, strict=True):
        timed = [route.route for route in row.routes]
        assert timed == [route for route in ROUTES if plan(each.shape, 8, budget, route, USUAL).route == route]
        assert row.chosen == plan(each.shape, 8, budget, speed=USUAL).route
        assert row.of(row.chosen).expected == plan(each.shape, 8, budget, speed=USUAL).seconds
        assert {len(route.seconds) for route in row.routes} == {2}
        assert row.sizes == each.shape._asdict()
    assert [route.route for route in record.measured[0].routes] == list(ROUTES)
    assert not NOT_POSSIBLE & {route.route for route in record.measured[-1].routes}


def test_each_round_has_every_route_once_in_an_order_of_its_own(monkeypatch):
    calls, inside = [], routes.weighted_gradient
    monkeypatch.setattr(routes, "weighted_gradient", lambda *args: (calls.append(args[-1]), inside(*args))[1])
    routes.measure(settings(rounds=7), found()[:1], lambda _: None)
    rounds = [tuple(calls[start : start + 4]) for start in range(0, len(calls), 4)]
    assert len(rounds) == 8
    assert all(sorted(order) == sorted(ROUTES) for order in rounds)
    assert len(set(rounds)) > 2


def test_a_route_beyond_the_budget_is_not_possible_unless_the_planner_takes_it():
    uses = found()[1].drawn(torch.Generator())
    every = {route: plan_of(uses, FULL_BUDGET, route).bytes for route in ROUTES}
    assert set(routes.possible(uses, FULL_BUDGET)) == set(ROUTES)
    assert list(routes.possible(uses, at_most(1))) == [plan_of(uses, at_most(1)).route]
    assert "pixels" not in routes.possible(uses, at_most(every["pixels"] // 8))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "resnet33"}, "resnet32"),
        ({"rounds": 0}, "rounds=0"),
        ({"batch": 1}, "batch=1"),
        ({"budget": 0}, "budget=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_settings_are_refused_with_the_rule(options, said):
    with pytest.raises(InputError, match=said):
        routes.resolve(**{"model": "small-cnn", "rounds": 1, **options})


def test_defaults_are_the_models_and_the_librarys():
    wanted = routes.resolve("resnet32", rounds=7)
    assert (wanted.batch, wanted.classes, wanted.budget_bytes) == (128, 10, MOST)
    assert routes.resolve("resnet32", rounds=7, budget=3).budget_bytes == 3 * 2**20
    assert routes.resolve("small-cnn", rounds=7).budget_bytes == LEAST


def made(shape, count, chosen, **milliseconds):
    """Median times, in ms, between one that is shorter and one that is longer by far."""
    timed = tuple(
        RouteTimes(route=name, expected=2e-3, seconds=(9e-3 * ms, 1e-3 * ms, 0.5e-3 * ms))
        for name, ms in milliseconds.items()
    )
    return ShapeTimes(shape=shape, sizes={"M": 2}, layer="0", count=count, chosen=chosen, routes=timed)


def made_record(*rows):
    return RoutesRecord(settings=settings(), measured=rows, surroundings=Surroundings(), provenance=ORIGIN)


def test_a_route_that_would_take_minutes_is_not_timed(monkeypatch):
    model, x = tiny()
    uses = weights_by_shape(model, [x])[0].drawn(torch.Generator().manual_seed(0))
    assert len(routes.possible(uses, at_most(2**30))) > 1
    monkeypatch.setattr(routes, "HOPELESS", 0.0)
    assert list(routes.possible(uses, at_most(2**30))) == [routes.plan_of(uses, at_most(2**30)).route]


GOOD = made("2 × 1 × 3 → 4", 3, "pairwise", pairwise=10.9, materialised=10.0)
BAD = made("2 × 9 × 3 → 4", 1, "kernel", pairwise=40.0, kernel=20.0, materialised=10.0)


def test_choices_are_held_against_the_best_route():
    good, bad = choices.choices(made_record(GOOD, BAD))
    assert (good.best, good.good, bad.best, bad.good) == ("materialised", True, "materialised", False)
    assert (good.ratio, bad.ratio) == (pytest.approx(1.09), pytest.approx(2.0))
    assert good.expected_ms == pytest.approx(2.0)


def test_every_weight_counts_once_in_what_all_choices_cost():
    assert choices.extra(choices.choices(made_record(GOOD, BAD))) == pytest.approx((3 * 10.9 + 20) / 40 - 1)
    best = replace(BAD, chosen="materialised")
    assert choices.extra(choices.choices(made_record(best))) == 0


def test_the_sentence_counts_and_names_what_misses():
    assert choices.answer(choices.choices(made_record(GOOD, BAD))) == (
        "The planner's choice is within 10 % of the best route on 1 of 2 shapes, and costs 31.8 % more than the best "
        "choice everywhere, over one backward pass; it misses on 2 × 9 × 3 → 4 (kernel takes 2.00 × materialised's "
        "time)."
    )
    alone = choices.answer(choices.choices(made_record(GOOD)))
    assert alone.endswith(
        "on 1 of 1 shapes, and costs 9.0 % more than the best choice everywhere, over one backward pass."
    )


def test_the_table_has_a_row_for_each_shape_and_a_dash_where_a_route_is_not_possible(capsys):
    console.show(terminal_table(made_record(GOOD, BAD)))
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [
        ["2 × 1 × 3 → 4", "3", "pairwise", "10.90", "10.00", "–", "1.09", "2.00"],
        ["2 × 9 × 3 → 4", "1", "kernel", "40.00", "10.00", "20.00", "2.00", "2.00"],
    ]


def test_no_call_is_spared_a_product_that_another_has_made(monkeypatch):
    asked, products = [], Scratch.products

    def watched(*args):
        asked.append(products(*args))
        return asked[-1]

    monkeypatch.setattr(Scratch, "products", watched)
    routes.measure(settings(rounds=3), found(), lambda _: None)
    assert asked
    assert all(kept is None for kept in asked)


def test_a_measurement_makes_a_record_that_survives_the_disk(tmp_path):
    record = routes.measure(settings(rounds=1), found()[:2], lambda _: None)
    assert record.provenance.torch == torch.__version__
    for each in (record, made_record(GOOD, BAD)):
        write(each, tmp_path / "record.json")
        assert read(tmp_path / "record.json") == each


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.update(measured=[]),
        lambda record: record.pop("settings"),
        lambda record: record["measured"][0].update(chosen="pixels"),
        lambda record: record["measured"][0].update(count=0),
        lambda record: record["measured"][0]["routes"][0].update(seconds=[1.0]),
        lambda record: record["measured"][0]["routes"][0].update(seconds=[1.0, 1.0, 0.0]),
    ],
)
def test_a_spoilt_record_is_refused_by_name(tmp_path, spoil):
    path = tmp_path / "record.json"
    write(made_record(GOOD, BAD), path)
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"record\.json"):
        read(path)


def test_records_are_read_and_judged_without_torch():
    code = "import sys, fngd_bench.report.routes, fngd_bench.price.record; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
