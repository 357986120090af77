"""A run's record: what is written is what is read, and what a resumption made void is gone."""

import json

import pytest
from origin import ORIGIN

from fngd_bench.errors import InputError
from fngd_bench.runs import reader
from fngd_bench.runs.events import (
    Coefficients,
    End,
    Epoch,
    Gram,
    Header,
    LayerCoefficients,
    Resumed,
    RunSettings,
    Skipped,
    Steps,
    decode,
    encode,
)
from fngd_bench.runs.journal import Journal

SETTINGS = RunSettings(
    workload="digits-cnn",
    scale="smoke",
    method="fngd",
    seed=0,
    hyperparameters={"lr": 0.1, "nesterov": False, "damping": None},
    epochs=2,
    batch=4,
    steps_per_epoch=3,
    schedule="steps",
    metric="accuracy",
    target=0.9,
)
HEADER = Header(settings=SETTINGS, provenance=ORIGIN, parameters=12)
LAYER = LayerCoefficients(
    coefficient_mean=0.9,
    coefficient_spread=0.1,
    shared_spread=0.01,
    damping=2.0,
    effective_rank=3.0,
    cosine=0.99,
    batches=3,
    skipped=0,
)


def epoch(number, step, metric=0.5):
    return Epoch(
        epoch=number,
        step=step,
        seconds=float(step),
        sections={"forward": 1.0},
        lr=0.1,
        train_loss=1.0,
        test_loss=2.0,
        metric=metric,
    )


def written(tmp_path, *events):
    path = tmp_path / reader.FILE
    with Journal(path) as journal:
        for event in events:
            journal.write(event)
    return path


@pytest.mark.parametrize(
    "event",
    [
        HEADER,
        Steps(first=0, losses=(1.5, float("inf")), seconds=(0.1, 0.2)),
        epoch(1, 3),
        Coefficients(epoch=1, layers={"0": LAYER, "": LAYER}),
        Gram(epoch=1, layers={"head": ((1.0, 0.5), (0.5, 1.0))}),
        Skipped(step=2, reason="loss nan"),
        Resumed(step=3, provenance=ORIGIN),
        End(step=6, reason="finished", seconds=1.0, peak_bytes=100),
    ],
    ids=lambda event: type(event).__name__,
)
def test_every_event_comes_back_as_it_was(event):
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


def test_a_whole_run_is_read(tmp_path):
    path = written(
        tmp_path,
        HEADER,
        Steps(first=0, losses=(3.0, 2.0, 1.0), seconds=(0.3, 0.2, 0.1)),
        epoch(1, 3, 0.8),
        Coefficients(epoch=1, layers={"0": LAYER}),
        Steps(first=3, losses=(0.9, 0.8, 0.7), seconds=(0.1, 0.1, 0.1)),
        epoch(2, 6, 0.95),
        End(step=6, reason="finished", seconds=0.9, peak_bytes=7),
    )
    run = reader.read(path)
    assert run.settings == SETTINGS
    assert run.losses == {0: 3.0, 1: 2.0, 2: 1.0, 3: 0.9, 4: 0.8, 5: 0.7}
    assert run.step_seconds[2] == 0.1
    assert [page.metric for page in run.epochs] == [0.8, 0.95]
    assert run.end.reason == "finished"
    assert run.reached(0.9).epoch == 2
    assert run.reached(0.99) is None
    assert not run.torn


def test_what_a_resumption_makes_void_is_left_out(tmp_path):
    path = written(
        tmp_path,
        HEADER,
        Steps(first=0, losses=(3.0, 2.0, 1.0), seconds=(1.0, 1.0, 1.0)),
        epoch(1, 3),
        Coefficients(epoch=1, layers={"0": LAYER}),
        Gram(epoch=1, layers={}),
        Skipped(step=1, reason="loss nan"),
        Steps(first=3, losses=(9.0, 9.0, 9.0), seconds=(9.0, 9.0, 9.0)),
        Skipped(step=5, reason="loss nan"),
        epoch(2, 6, 0.1),
        Coefficients(epoch=2, layers={"0": LAYER}),
        End(step=6, reason="stopped", seconds=30.0, peak_bytes=7),
        Resumed(step=4, provenance=ORIGIN),
        Steps(first=4, losses=(0.8, 0.7), seconds=(1.0, 1.0)),
        epoch(2, 6, 0.9),
    )
    run = reader.read(path)
    assert run.losses == {0: 3.0, 1: 2.0, 2: 1.0, 3: 9.0, 4: 0.8, 5: 0.7}
    assert [page.metric for page in run.epochs] == [0.5, 0.9]
    assert [page.epoch for page in run.coefficients] == [1]
    assert [page.step for page in run.skipped] == [1]
    assert len(run.grams) == 1
    assert run.end is None


def test_a_torn_last_line_is_tolerated_and_closed_by_the_next_writer(tmp_path):
    path = written(tmp_path, HEADER, Steps(first=0, losses=(3.0,), seconds=(1.0,)))
    with path.open("a", encoding="utf-8") as file:
        file.write(encode(epoch(1, 3))[:40])
    run = reader.read(path)
    assert run.torn
    assert run.losses == {0: 3.0}
    assert run.epochs == ()
    with Journal(path) as journal:
        journal.write(Resumed(step=1, provenance=ORIGIN))
        journal.write(Steps(first=1, losses=(2.0,), seconds=(1.0,)))
    run = reader.read(path)
    assert run.torn
    assert run.losses == {0: 3.0, 1: 2.0}


def test_a_damaged_line_in_the_middle_is_refused_by_number(tmp_path):
    path = written(tmp_path, HEADER, epoch(1, 3), epoch(2, 6))
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1] = lines[1][:30]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: .*damaged"):
        reader.read(path)


@pytest.mark.parametrize("content", ["", "{}\n", '{"event": "unheard"}\n', "[]\n", encode(epoch(1, 3)) + "\n"])
def test_what_is_not_a_record_is_refused(tmp_path, content):
    path = tmp_path / reader.FILE
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"not a record of `fngd train`|damaged"):
        reader.read(path)


def test_a_record_of_another_version_is_refused(tmp_path):
    path = tmp_path / reader.FILE
    content = json.loads(encode(HEADER))
    content["schema"] = 0
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="another version"):
        reader.read(path)


def test_records_are_found_below_folders(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, HEADER)
    assert [path.parent.name for path in reader.find([tmp_path])] == ["a", "b"]
    with pytest.raises(InputError, match="there is no"):
        reader.find([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no record\.jsonl"):
        reader.find([tmp_path / "empty"])


def test_a_listener_hears_what_is_written_and_is_closed(tmp_path):
    heard = []

    class Listener:
        def write(self, event):
            heard.append(event)

        def close(self):
            heard.append("closed")

    with Journal(tmp_path / reader.FILE) as journal:
        journal.tell(Listener())
        journal.write(HEADER)
    assert heard == [HEADER, "closed"]
