"""`bench step` and `bench import` measure what they say, on a model small enough for a test."""

import functools
import os
import signal
import warnings
from dataclasses import replace

import pytest
import torch
import torch._dynamo

from fngd_bench.composite import preconditioner
from fngd_bench.errors import InputError
from fngd_bench.price import heats, imports, memory, race, steps
from fngd_bench.price.methods import METHODS, parse
from fngd_bench.price.neighbours import Reading, Watch
from fngd_bench.price.prices import prices
from fngd_bench.price.record import read, write
from fngd_bench.price.surroundings import Surroundings, together
from fngd_bench.price.table import table


def small(methods="sgd,fngd-share", count=2, **options):
    wanted = steps.resolve("small-cnn", parse(methods), steps=count, batch=4, **options)
    return replace(wanted, memory_runs=1)


def small_compiled(methods):
    return steps.resolve("small-cnn", parse(methods), steps=2, batch=4, compiled=True)


def quiet(_name):
    pass


def undisturbed():
    """Where nothing is known of a host, every round counts."""
    return Watch(lambda: None)


def test_methods_keep_their_order_and_sgd_is_always_there():
    assert parse("fngd-share,sgd") == ("fngd-share", "sgd")
    assert parse(" fngd-derive , fngd-share") == ("sgd", "fngd-derive", "fngd-share")


@pytest.mark.parametrize("names", ["", ",", "adam", "sgd-m", "sgd,sgd"])
def test_bad_lists_of_methods_are_refused(names):
    with pytest.raises(InputError, match="methods="):
        parse(names)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 15}, "--steps 20"),
        ({"steps": 10, "batch": 1}, "batch=1"),
        ({"steps": 10, "seed": -1}, "seed=-1"),
        ({"steps": 10, "image_size": 16}, "at least 32"),
        ({"steps": 10, "model": "transformer", "image_size": 16}, "words"),
        ({"steps": 10, "model": "none"}, "resnet110"),
        ({"steps": 10, "processes": 0}, "processes=0"),
        ({"steps": 20, "processes": 3}, r"multiple of 30.*every 10.* and each of 3 processes.*--steps 30"),
    ],
)
def test_bad_settings_are_refused_with_the_rule(options, said):
    with pytest.raises(InputError, match=said):
        steps.resolve(options.pop("model", "resnet32"), ("sgd", "fngd-refreshed"), **options)


def test_steps_fill_the_periods_of_all_methods_together():
    with pytest.raises(InputError, match=r"multiple of 100.*soap every 10, kfac every 100.*--steps 200"):
        steps.resolve("resnet32", ("sgd", "soap", "kfac"), steps=110)


def test_defaults_are_those_of_the_model():
    wanted = steps.resolve("transformer", ("sgd",), steps=60)
    assert (wanted.batch, wanted.image_size, wanted.classes) == (64, None, 8000)
    assert steps.resolve("resnet32", ("sgd",), steps=60).batch == 128


@pytest.mark.parametrize("name", METHODS)
def test_every_method_steps_and_is_in_its_phase_when_the_clock_starts(name, monkeypatch):
    monkeypatch.setattr(race.gc, "collect", lambda: 0)
    wanted = small("sgd", 3)
    with torch.random.fork_rng():
        begin = race.start(wanted)
        (racer,) = race.racers([METHODS[name]], begin)
        before = [parameter.clone() for parameter in racer.model.parameters()]
        times = race.interleave([racer], wanted, quiet, undisturbed())
    assert len(times[0]) == 3
    assert all(not torch.equal(a, b) for a, b in zip(before, racer.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, begin.model.parameters(), strict=True))
    assert not METHODS[name].shares or preconditioner(racer.optimizer).phase == "share"


def test_a_sharing_method_is_not_timed_while_it_derives():
    wanted = replace(small("fngd-share"), warmup=1)
    with torch.random.fork_rng(), pytest.raises(RuntimeError, match="still derives"):
        race.interleave(race.racers([METHODS["fngd-share"]], race.start(wanted)), wanted, quiet, undisturbed())


def test_the_order_changes_from_round_to_round_and_repeats_with_the_seed(monkeypatch):
    monkeypatch.setattr(race.gc, "collect", lambda: 0)  # a tenth of a second each, and not what is tested

    class Recorder:
        def __init__(self, name, log):
            self.step, self.check_phase = lambda: log.append(name), lambda: None

    def order(seed):
        log = []
        wanted = replace(small(seed=seed), steps=20, warmup=0)
        race.interleave([Recorder(name, log) for name in "abc"], wanted, quiet, undisturbed())
        return ["".join(log[i : i + 3]) for i in range(0, 60, 3)]

    assert all(sorted(each) == ["a", "b", "c"] for each in order(0))
    assert len(set(order(0))) > 3
    assert order(0) == order(0) != order(1)


def test_periods_that_the_host_disturbed_are_run_again_as_a_whole(monkeypatch):
    monkeypatch.setattr(race.gc, "collect", lambda: 0)
    taken, now = iter([0.0, 0.5, 0.0]), [0.0, 0.0]

    def host():
        return Reading(wall=now[0], busy=0.0, own=0.0, stolen=now[1])

    class Runner:
        steps = 0

        def step(self):
            self.steps += 1
            if self.steps % 10 == 0:
                now[:] = now[0] + 1, now[1] + next(taken)

        def check_phase(self):
            pass

    runner, names = Runner(), []
    wanted = replace(small("fngd-refreshed", 20), warmup=0)
    times = race.interleave([runner], wanted, names.append, watch := Watch(host, cores=2))
    assert runner.steps == 30
    assert len(times[0]) == len(names) == 20
    assert watch.seen() == Surroundings(other_cores=0.0, stolen=0.0, dropped=10)


def test_the_start_depends_on_the_seed_alone():
    with torch.random.fork_rng():
        first, second = race.start(small()), race.start(small())
    assert torch.equal(first.batch.inputs[0], second.batch.inputs[0])
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


def test_a_memory_run_shares_from_its_first_step():
    wanted = small("fngd-share", 1)
    with torch.random.fork_rng():
        (racer,) = race.racers([METHODS["fngd-share"]], race.start(wanted))
        race.interleave([racer], wanted, quiet, undisturbed())
        fresh = race.Racer(METHODS["fngd-share"], *race.start(wanted))
    assert fresh.optimizer.phase == "derive"
    fresh.take(racer.coefficients())
    assert fresh.optimizer.phase == "share"
    for name, c in racer.optimizer.coefficients.items():
        assert torch.equal(fresh.optimizer.coefficients[name], c)


def test_peak_memory_counts_what_is_held():
    before = memory.peak_resident_bytes()
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert memory.resident_bytes() >= len(held)
    assert memory.peak_resident_bytes() >= max(before, memory.resident_bytes())


def test_a_measurement_makes_a_record_that_survives_the_disk(tmp_path):
    names, kept = [], []
    wanted = small("fngd-share", 3)
    record = steps.measure(wanted, names.append, kept.append)
    assert len(names) == steps.pieces(wanted)
    assert [row.method for row in record.measured] == ["sgd", "fngd-share"]
    assert all(len(row.seconds) == 3 and len(row.peak_bytes) == 1 for row in record.measured)
    assert record.parameters == 56_554
    assert record.provenance.torch == torch.__version__
    (timed,) = kept
    assert [row.seconds for row in timed.measured] == [row.seconds for row in record.measured]
    for found in (timed, record):
        write(found, tmp_path / "record.json")
        assert read(tmp_path / "record.json") == found
    assert "memory" not in table([timed])


def test_several_processes_take_as_many_steps_each(tmp_path):
    names = []
    wanted = replace(small("fngd-share", 6, processes=3), memory_runs=0)
    record = steps.measure(wanted, names.append, quiet)
    assert len(names) == steps.pieces(wanted) == 3 * wanted.warmup + 6
    assert [len(row.seconds) for row in record.measured] == [6, 6]
    assert [price.time.n for price in prices(record)] == [3, 3]
    assert record.surroundings.other_cores is not None
    write(record, tmp_path / "record.json")
    assert read(tmp_path / "record.json") == record
    assert "| small-cnn | 4 | 3 × 2 |" in table([record])
    assert "median of the processes' medians" in table([record])


def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def fails(*_):
    raise SystemExit(3)


def test_a_process_that_is_killed_is_an_error_of_one_line(monkeypatch):
    monkeypatch.setattr(heats, "_send", killed)
    with pytest.raises(InputError, match="batch=4 was killed: most likely memory ran out"):
        heats.run(small(count=2, processes=2), quiet)


def test_a_process_that_fails_is_not_taken_for_one_that_was_killed(monkeypatch):
    monkeypatch.setattr(heats, "_send", fails)
    with pytest.raises(RuntimeError, match="sgd, fngd-share failed: it has said why"):
        heats.run(small(count=2, processes=2), quiet)


def test_what_others_took_of_several_processes_is_put_together():
    parts = [Surroundings(other_cores=0.1, stolen=0.0, dropped=1), Surroundings(other_cores=0.3, stolen=0.1)]
    assert together(parts) == Surroundings(other_cores=0.3, stolen=0.05, dropped=1)
    assert together([*parts, Surroundings()]) == Surroundings(dropped=1)


def test_a_compiled_measurement_has_times_only_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(race.torch, "compile", functools.partial(torch.compile, backend="aot_eager"))  # quicker to make
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler warns of what it does itself
        record = steps.measure(small_compiled("fngd-share,fngd-derive"), quiet, quiet)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # plain, one that derives, one that shares
    assert all(len(row.seconds) == 2 and not row.peak_bytes for row in record.measured)
    write(record, tmp_path / "record.json")
    assert read(tmp_path / "record.json") == record
    header, _, row = table([record]).splitlines()[:3]
    assert row.startswith("| small-cnn, compiled |")
    assert "deriving step" in header
    assert "memory" not in header


def test_a_method_that_differentiates_twice_is_not_compiled():
    with pytest.raises(InputError, match="adahessian differentiates twice"):
        small_compiled("adahessian")


def test_imports_are_timed_in_pairs(monkeypatch):
    monkeypatch.setattr(imports, "import_seconds", {"fngd": 2.0, "torch": 1.0}.__getitem__)
    record = imports.measure(3, 0, quiet)
    assert (record.fngd_seconds, record.torch_seconds) == ((2.0,) * 3, (1.0,) * 3)


def test_an_import_takes_time_in_a_fresh_interpreter():
    assert 0 < imports.import_seconds("json") < 60


@pytest.mark.parametrize(("pairs", "seed"), [(0, 0), (1, -1)])
def test_bad_import_settings_are_refused(pairs, seed):
    with pytest.raises(InputError, match=r"must be"):
        imports.measure(pairs, seed, quiet)


def test_the_environment_is_put_back_after_a_memory_run(monkeypatch):
    (name,) = memory.PROMPT_MALLOC
    monkeypatch.delenv(name, raising=False)
    with memory._environment(memory.PROMPT_MALLOC):
        assert os.environ[name] == memory.PROMPT_MALLOC[name]
    assert name not in os.environ
    monkeypatch.setenv(name, "7")
    with memory._environment(memory.PROMPT_MALLOC):
        assert os.environ[name] == memory.PROMPT_MALLOC[name]
    assert os.environ[name] == "7"
