"""What the doctor says is what the optimizer does."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import fngd
from cases import CASES
from fngd.planner import LEAST, MOST, Shape


@pytest.mark.parametrize("name", CASES)
def test_the_doctor_names_the_modules_the_optimizer_attaches(name):
    case = CASES[name]
    model, inputs, targets = case.data()
    diagnosis = fngd.doctor(model, *inputs, batch_dim=case.batch_dim)
    optimizer = fngd.FNGD(model, lr=0.1, derive_steps=1, batch_dim=case.batch_dim)
    case.loss(model(*inputs), targets).backward()
    derived = set(optimizer.coefficients)
    said = {row.name for row in diagnosis.rows if row.preconditioned}
    assert derived <= said
    tied = sum("they are one layer" in warning for warning in diagnosis.warnings)
    assert len(said) - tied == len(derived)
    for row in diagnosis.rows:
        if row.preconditioned and row.reason != "only the bias is trainable":
            assert row.shapes
            assert row.flops > 0
            assert row.bytes > 0
    assert all(shape.M == 5 for row in diagnosis.rows for shape in row.shapes)


@pytest.mark.parametrize("name", CASES)
def test_the_doctor_says_the_same_of_a_model_without_memory(name):
    case = CASES[name]
    model, inputs, _ = case.data()
    said = fngd.doctor(model, *inputs, batch_dim=case.batch_dim)
    with torch.device("meta"):
        model, inputs = case.build().double(), [x.to("meta") for x in inputs]
        assert fngd.doctor(model, *inputs, batch_dim=case.batch_dim) == said


def test_the_doctor_leaves_the_model_and_the_random_numbers_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fngd.doctor(model, torch.ones(3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert type(model[0]) is nn.Linear


def test_shapes_are_canonical():
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, stride=2), nn.Flatten(2), nn.Linear(4, 5))
    rows = fngd.doctor(model, torch.randn(8, 4, 5, 5)).rows
    assert rows[0].shapes == (Shape(M=8, G=2, T=4, d_in=18, d_out=3, kernel=9, pixels=25, padded=25, native=True),)
    assert rows[1].shapes == (Shape(M=8, G=1, T=6, d_in=4, d_out=5),)


def test_the_doctor_plans_with_the_budget_and_the_route_that_training_will_have():
    model, x = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1)), torch.randn(16, 8, 12, 12)
    usual = fngd.doctor(model, x).rows[0].plans[0]
    assert fngd.doctor(model, x, gram_route="pairwise").rows[0].plans[0].route == "pairwise" != usual.route
    assert fngd.doctor(model, x, gram_budget=usual.bytes // 2).rows[0].bytes < usual.bytes
    with pytest.raises(ValueError, match="gram_route"):
        fngd.doctor(model, x, gram_route="quick")


@pytest.mark.parametrize(("channels", "expected"), [(4, LEAST), (64, 2 * LEAST), (512, MOST)])
def test_the_doctor_names_the_budget_that_training_will_have(channels, expected):
    model = nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), nn.Conv2d(channels, channels, 1))
    x = torch.randn(48, 3, 34, 34)
    diagnosis = fngd.doctor(model, x)
    assert (diagnosis.gram_budget, fngd.doctor(model, x, gram_budget=5).gram_budget) == (expected, 5)
    assert f"may hold {expected / 2**20:.3g} MiB" in str(diagnosis)
    natural = fngd.NaturalGradient(model, policy=fngd.Fresh())
    model(x).square().mean().backward()
    assert natural._run.budget == (expected, MOST)


def test_the_doctor_sees_what_autocast_makes_of_inputs():
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert fngd.doctor(model, x).rows[0].shapes[0].widened
    assert not fngd.doctor(model, x).rows[0].shapes[0].widened


def test_coverage_is_the_share_of_trained_parameters():
    model = nn.Sequential(nn.Linear(9, 9), nn.LayerNorm(5), nn.Embedding(2, 5), nn.Linear(7, 7))
    model[3].requires_grad_(requires_grad=False)
    assert fngd.doctor(model).coverage == 90 / 110


def test_a_parameter_that_two_modules_hold_is_covered_once():
    assert fngd.doctor(Head(), torch.randint(7, (3, 5))).coverage == 1.0


def test_where_no_gradient_comes_none_is_said_to_be_plain():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).requires_grad_(requires_grad=False)
    assert [row.gradient for row in fngd.doctor(model).rows] == ["none", "none"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.LayerNorm(4), "no rule for LayerNorm"),
        (weight_norm(nn.Linear(4, 4)), "weight is computed (parametrized), not a parameter"),
        (nn.Linear(4, 4).requires_grad_(requires_grad=False), "frozen"),
        (nn.Linear(4, 4, dtype=torch.complex64), "torch.complex64 is not real floating point"),
    ],
)
def test_the_doctor_says_why_not(model, reason):
    rows = fngd.doctor(nn.Sequential(model)).rows
    assert reason in {row.reason for row in rows}
    assert not any(row.preconditioned for row in rows)


def test_excluded_and_uncalled_modules_are_said_so():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model.spare = nn.ModuleList([nn.Linear(4, 4)])
    model.forward = model[0]
    diagnosis = fngd.doctor(nn.ModuleDict({"inner": model}), exclude=["inner.1"])
    assert [row.reason for row in diagnosis.rows] == ["no example inputs", "excluded", "no example inputs"]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x).flatten(0, 1))


def test_tied_weights_and_folded_samples_are_warned_of():
    diagnosis = fngd.doctor(Head(), torch.randint(7, (3, 5)))
    text = str(diagnosis)
    assert "'embed' and 'head' share a parameter: 'embed' (Embedding) adds its plain gradient" in text
    assert "'head' sees 15 rows for a batch of 3: read as 5 rows a sample" in text


def test_a_tie_of_frozen_modules_is_not_warned_of():
    model = Head().requires_grad_(requires_grad=False)
    assert not any("share" in warning for warning in fngd.doctor(model, torch.randint(7, (3, 5))).warnings)


def test_a_wrong_batch_dimension_is_warned_of():
    model = nn.TransformerEncoderLayer(4, 2, 8)
    text = str(fngd.doctor(model, torch.randn(5, 3, 4)))
    assert "training will stop here" in text
    assert "batch_first=False" in text
    assert "warning" not in str(fngd.doctor(model, torch.randn(5, 3, 4), batch_dim=1))


def test_a_model_in_eval_mode_is_warned_of():
    assert "eval mode" in str(fngd.doctor(nn.Linear(3, 2).eval()))


def test_the_table_prints_every_module_once():
    model = nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8))
    lines = str(fngd.doctor(model, torch.randn(64, 64))).splitlines()
    assert lines[0].split()[:3] == ["module", "kind", "parameters"]
    assert lines[2].split()[:-2] == ["0", "Linear", "520", "weighted", "64", "×", "1", "×", "64", "→", "8", "pairwise"]
    assert "plain: no rule for LayerNorm" in lines[3]
    assert lines[5] == "1 of 2 modules, 97.0% of the trained parameters are preconditioned."


@pytest.mark.parametrize(("reads", "writes"), [(0, 3), (4, 0)])
def test_a_layer_that_reads_or_writes_nothing_is_no_reason_to_stop(reads, writes):
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Linear(reads, writes)
    (row,) = fngd.doctor(model, torch.randn(4, reads)).rows
    assert row.preconditioned
