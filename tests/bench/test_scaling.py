"""`bench scaling` measures what it says: kinds of step, phases, bytes, sizes; on networks small enough for a test."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fngd_bench.composite import preconditioner
from fngd_bench.errors import InputError
from fngd_bench.models.stack import stack
from fngd_bench.price import kinds, peak, scaling, subjects
from fngd_bench.price.methods import METHODS
from fngd_bench.price.neighbours import Watch
from fngd_bench.price.record import read, write
from fngd_bench.price.runner import Runner, tensor_bytes
from fngd_bench.price.scaling_record import AXES, Point
from fngd_bench.resident import resident_bytes

POINT = Point(subject="mlp", axis="depth", batch=4, width=8, depth=2)


def wanted(**options):
    usual = {"axes": "batch", "subject": "linear", "methods": "fngd-share", "rounds": 1, "scale": "smoke"}
    return scaling.resolve(**{**usual, **options})


def runner(kind, point=POINT):
    begin = subjects.start(point, 0)
    return Runner(kind, begin.model, begin.loss), begin.batches


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(scaling, "MOST_ROUNDS", 2)
    with torch.random.fork_rng():
        yield


def test_lists_are_put_in_order_and_sgd_is_always_there():
    found = wanted(axes="depth, batch", subject="model,linear", methods="kfac")
    assert found.axes == ("batch", "depth")
    assert found.subjects == ("linear", "mlp", "resnet")
    assert found.methods == ("sgd", "kfac")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"axes": ""}, "axis=''"),
        ({"axes": "height"}, "batch, width, depth"),
        ({"axes": "depth"}, "linear does not grow that way"),
        ({"subject": ","}, "subject=','"),
        ({"subject": "resnet32"}, "mlp, resnet"),
        ({"methods": "adam"}, "fngd-share"),
        ({"methods": "fngd-refreshed"}, "several kinds"),
        ({"rounds": 0}, "rounds=0"),
        ({"scale": "paper"}, "smoke, cpu"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_settings_are_refused_with_the_rule(options, said):
    with pytest.raises(InputError, match=said):
        wanted(**options)


@pytest.mark.parametrize("name", subjects.SUBJECTS)
@pytest.mark.parametrize("scale", subjects.SCALES)
def test_every_axis_has_sizes_enough_for_a_fit_and_only_one_of_them_grows(name, scale):
    for axis in AXES:
        found = subjects.points(subjects.SUBJECTS[name], axis, scale)
        others = {tuple(getattr(point, other) for other in AXES if other != axis) for point in found}
        assert not found or (len(found) >= 3 and len(others) == 1)
        assert [point.size for point in found] == sorted({point.size for point in found})


def test_batches_grow_from_16_to_512():
    for subject in subjects.SUBJECTS.values():
        assert [point.size for point in subjects.points(subject, "batch", "cpu")] == [16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_stack_has_as_many_layers_as_asked_for(depth):
    assert sum(p.numel() for p in stack(8, depth).parameters()) == depth * 8 * 9


def test_the_resnet_of_width_16_and_depth_32_is_resnet32():
    model = subjects.SUBJECTS["resnet"].build(16, 32)
    assert sum(p.numel() for p in model.parameters()) == 464_154


def test_the_squared_loss_is_the_mean_over_samples_of_half_the_squared_distance():
    y, t = torch.randn(3, 4, 2, dtype=torch.float64), torch.randn(3, 4, 2, dtype=torch.float64)
    mean = sum(0.5 * ((y[m] - t[m]) ** 2).sum() for m in range(3)) / 3
    torch.testing.assert_close(subjects.squared(y, t), mean)


def test_the_shares_of_the_kinds_are_those_of_the_intervals():
    for method in ("kfac", "shampoo"):
        shares = {kind.name: kind.share for kind in kinds.kinds(method)}
        assert shares == pytest.approx({"plain": 0.9, "statistics": 0.09, "inverse": 0.01})
    assert {kind.name: kind.share for kind in kinds.kinds("soap")} == pytest.approx({"statistics": 0.9, "inverse": 0.1})
    assert [kind.name for kind in kinds.kinds("eva")] == ["every"]


def test_a_step_of_kfac_measures_and_inverts_as_its_kind_says():
    for kind, batches_seen, inverts in zip(kinds.kinds("kfac"), (1, 3, 3), (False, False, True), strict=True):
        running, batches = runner(kind)
        for batch in batches[:2]:
            running.step(batch)
        before = {name: state.prepared for name, state in running.optimizer.states.items()}
        running.step(batches[2])
        for name, state in running.optimizer.states.items():
            assert state.batches == batches_seen
            assert (state.prepared is not before[name]) == inverts


def test_a_step_of_shampoo_measures_and_inverts_as_its_kind_says():
    for kind, measures, inverts in zip(kinds.kinds("shampoo"), (False, True, True), (False, False, True), strict=True):
        running, batches = runner(kind)
        for batch in batches[:2]:
            running.step(batch)
        before = running.optimizer.state_dict()["state"][0]
        statistics, inverses = (torch.clone(before[name]) for name in ("statistics", "inverses"))
        running.step(batches[2])
        after = running.optimizer.state_dict()["state"][0]
        assert torch.equal(after["statistics"], statistics) != measures
        assert torch.equal(after["inverses"], inverses) != inverts


@pytest.mark.parametrize("method", kinds.names())
def test_every_method_is_in_its_phase_when_the_clock_starts(method):
    for kind in kinds.kinds(method):
        running, batches = runner(kind)
        running.derive(batches)
        running.check_phase()
        running.step(batches[0])
        assert all(p.isfinite().all() for p in running.model.parameters())


def test_a_sharing_method_is_not_timed_while_it_derives():
    running, _ = runner(kinds.kinds("fngd-share")[0])
    with pytest.raises(RuntimeError, match="still derives"):
        running.check_phase()


def test_sharing_at_once_starts_in_the_share_phase_and_leaves_other_methods_alone():
    running, batches = runner(kinds.kinds("fngd-share")[0])
    running.share_at_once(4)
    running.step(batches[0])
    assert preconditioner(running.optimizer).phase == "share"
    assert all(torch.equal(c, torch.ones(4)) for c in running.optimizer.coefficients.values())
    fresh, _ = runner(kinds.kinds("fngd-derive")[0])
    fresh.share_at_once(4)
    assert preconditioner(fresh.optimizer).phase == "derive"


def test_a_layer_computes_its_input_gradient_and_does_not_add_up_those_of_others():
    point = Point(subject="linear", axis="width", batch=4, width=8, depth=1)
    gradients = []
    for _ in range(2):
        running, batches = runner(kinds.kinds("sgd")[0], point)
        running.step(batches[0])
        running.step(batches[0])
        gradients.append(batches[0].inputs[0].grad.clone())
    assert torch.equal(*gradients)
    model, (batch, *_) = subjects.start(point, 0)[:2]
    assert batch.inputs[0].requires_grad
    assert subjects.start(POINT, 0).batches[0].inputs[0].requires_grad is False
    assert len(model.weight) == 8


def test_bytes_of_tensors_are_counted_wherever_they_are():
    state = {"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.float64), {"c": torch.zeros(())}], "d": 7, "e": "ee"}
    assert tensor_bytes(state) == 12 + 16 + 4
    assert tensor_bytes(None) == 0


def test_the_state_is_what_the_methods_formulas_say():
    D, M, float32 = 8, 4, 4
    record = scaling.measure(wanted(methods="sgd,fngd-share,kfac,eva"), quiet)
    held = {row.method: row.state_bytes for row in record.measured if row.point.batch == M}
    momentum = D * (D + 1)
    assert held["sgd"] == float32 * momentum
    assert held["eva"] == float32 * (momentum + (D + 1) + D)
    assert held["kfac"] == float32 * (momentum + 2 * (D + 1) ** 2 + 2 * D**2)
    longer = {row.method: row.state_bytes for row in record.measured if row.point.batch == 2 * M}
    assert longer["fngd-share"] - held["fngd-share"] == float32 * M


def test_a_measurement_makes_a_record_that_survives_the_disk(tmp_path):
    names = []
    settings = wanted(axes="batch,width", methods="fngd-share,kfac", rounds=2)
    record = scaling.measure(settings, names.append)
    assert len(names) == scaling.pieces(settings)
    assert len(record.measured) == 3 * len(scaling.points(settings)) == 18
    assert record.rows == (("linear", "batch"), ("linear", "width"))
    assert {len(part.seconds) for row in record.measured for part in row.parts} == {2}
    assert record.provenance.torch == torch.__version__
    write(record, tmp_path / "record.json")
    assert read(tmp_path / "record.json") == record


def test_peaks_are_measured_after_the_times(monkeypatch):
    monkeypatch.setattr(scaling, "peak_bytes", lambda point, method, seed: 1000 * point.size)
    names = []
    settings = wanted(peaks=True)
    record = scaling.measure(settings, names.append)
    assert len(names) == scaling.pieces(settings)
    assert names[-1].endswith("peak memory of fngd-share")
    assert all(row.peak_bytes == 1000 * row.point.size for row in record.measured)


def test_a_peak_comes_from_a_fresh_process_and_holds_at_least_the_weights():
    point = Point(subject="linear", axis="width", batch=4, width=1024, depth=1)
    before = resident_bytes()
    found = peak.peak_bytes(point, "fngd-share", 0)
    assert found > 3 * 4 * 1024**2  # weight, gradient and momentum
    assert found < before  # torch itself is not in it


def test_a_killed_process_is_told_of(monkeypatch):
    class Killed:
        returncode = -9

    monkeypatch.setattr(peak.subprocess, "run", lambda *_args, **_options: Killed)
    with pytest.raises(InputError, match="memory ran out"):
        peak.peak_bytes(POINT, "kfac", 0)


def test_a_quick_step_is_timed_more_often_than_a_slow_one(monkeypatch):
    monkeypatch.setattr(scaling, "MOST_ROUNDS", 4)
    bench = scaling._Bench(wanted(), None, Watch(lambda: None), quiet)
    for seconds, rounds in ((10.0, 1), (1e-3, 4)):
        monkeypatch.setattr(scaling, "_round", lambda runners, _batch, _order, own=seconds: [own * len(runners)])
        assert len(scaling._interleave([runner(kinds.kinds("sgd")[0])[0]], (None,), bench, "here")[0]) == rounds


def test_the_order_changes_from_round_to_round():
    class Recorder:
        def __init__(self, name, log):
            self.step = lambda batch: log.append(name)

    log, order = [], np.random.default_rng(0)
    for _ in range(20):
        scaling._round([Recorder(name, log) for name in "abc"], None, order)
    rounds = {"".join(log[k : k + 3]) for k in range(0, 60, 3)}
    assert len(rounds) > 3
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)


def quiet(_name):
    pass


def test_the_start_depends_on_the_seed_alone():
    first, second, other = (subjects.start(POINT, seed) for seed in (0, 0, 1))
    assert torch.equal(first.batches[3].inputs[0], second.batches[3].inputs[0])
    assert torch.equal(first.model[0].weight, second.model[0].weight)
    assert not torch.equal(first.model[0].weight, other.model[0].weight)
    assert not torch.equal(first.batches[0].inputs[0], first.batches[1].inputs[0])
    assert replace(POINT, axis="width").size == 8


def test_only_the_method_that_help_leaves_out_is_left_out():
    assert set(METHODS) - set(kinds.names()) == {"fngd-refreshed"}
