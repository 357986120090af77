"""The command line: help with an example everywhere, and one line for whatever is wrong."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fngd_bench import cli, console, optimizers
from fngd_bench.cli import options
from fngd_bench.models import MODELS
from fngd_bench.price import memory, scaling, steps
from fngd_bench.price.methods import METHODS
from fngd_bench.price.record import read, write
from fngd_bench.price.table import BEGIN, END
from fngd_bench.runs import reader
from fngd_bench.runs.progress import Progress
from fngd_bench.workloads import WORKLOADS

COMMANDS = [
    ("demo",),
    ("train",),
    ("compare",),
    ("tune",),
    ("report",),
    ("doctor",),
    ("bench", "step"),
    ("bench", "scaling"),
    ("bench", "routes"),
    ("bench", "import"),
    ("bench", "table"),
    ("data", "list"),
    ("data", "fetch"),
    ("data", "verify"),
]


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example: fngd {' '.join(command)}" in result.output


def test_help_names_every_model_and_method():
    assert all(name in options.MODELS for name in MODELS)
    assert tuple(options.METHODS.split(", ")) == tuple(METHODS)
    assert tuple(options.TRAIN_METHODS.split(", ")) == tuple(optimizers.METHODS)
    assert tuple(options.WORKLOADS.split(", ")) == tuple(WORKLOADS)


def test_every_command_has_its_help_tested():
    def below(app, *words):
        named = [(*words, command.name or command.callback.__name__) for command in app.registered_commands]
        return [*named, *(name for group in app.registered_groups for name in below(group.typer_instance, group.name))]

    assert sorted(below(cli.app)) == sorted(COMMANDS)


def test_help_does_not_wait_for_torch():
    code = "import sys, fngd_bench.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing",), "nothing"),
        (("demo", "--epochs", "0"), "epochs=0"),
        (("demo", "--epochs", "many"), "--epochs"),
        (("demo", "--seeds", "0"), "seeds=0"),
        (("train",), "workload"),
        (("train", "mnist", "fngd"), "digits-cnn"),
        (("train", "digits-cnn", "sgd"), "sgd-m"),
        (("train", "digits-cnn", "fngd", "--scale", "big"), "smoke"),
        (("train", "digits-cnn", "fngd", "--lr", "-1"), "lr"),
        (("train", "digits-cnn", "fngd", "--lr", "fast"), "--lr"),
        (("train", "digits-cnn", "fngd", "--set", "gain"), "NAME=VALUE"),
        (("train", "digits-cnn", "fngd", "--set", "gain=3"), "gain"),
        (("train", "digits-cnn", "fngd", "--device", "abacus"), "abacus"),
        (("train", "cifar10-resnet32", "fngd", "--data", "/nowhere"), "fngd data fetch cifar10"),
        (("compare", "digits-cnn", "--methods", "sgd-m,sgd-m"), "each once"),
        (("compare", "digits-cnn", "--methods", ","), "one method or more"),
        (("compare", "digits-cnn", "--methods", "sgd"), "sgd-m"),
        (("compare", "digits-cnn", "--seeds", "0"), "seeds=0"),
        (("compare", "digits-cnn", "--page", "/nowhere/page.html"), "/nowhere"),
        (("tune", "digits-cnn", "--trials", "0"), "trials=0"),
        (("tune", "digits-cnn", "--sampler", "luck"), "tpe"),
        (("report",), "FOLDER"),
        (("report", "/nowhere"), "/nowhere"),
        (("doctor",), "model"),
        (("doctor", "resnet33"), "resnet32"),
        (("bench", "step"), "--model"),
        (("bench", "step", "--model", "resnet33"), "resnet32"),
        (("bench", "step", "--model", "resnet32", "--methods", "adam"), "fngd-share"),
        (("bench", "step", "--model", "resnet32", "--steps", "0"), "steps=0"),
        (("bench", "step", "--model", "resnet32", "--methods", "kfac"), "--steps 100"),
        (("bench", "step", "--model", "resnet32", "--batch", "1"), "batch=1"),
        (("bench", "step", "--model", "resnet32", "--json", "/nowhere/at/all.json"), "/nowhere/at"),
        (("bench", "step", "--model", "resnet32", "--speed"), "--speed"),
        (("bench", "scaling", "--axis", "height"), "batch, width, depth"),
        (("bench", "scaling", "--subject", "mnist"), "convolution"),
        (("bench", "scaling", "--methods", "fngd-refreshed"), "bench step"),
        (("bench", "scaling", "--rounds", "0"), "rounds=0"),
        (("bench", "scaling", "--scale", "paper"), "smoke"),
        (("bench", "scaling", "--subject", "layer", "--axis", "depth"), "does not grow"),
        (("bench", "scaling", "--out", "/nowhere/page.html"), "/nowhere"),
        (("bench", "scaling", "--json", "/nowhere/at/all.json"), "/nowhere/at"),
        (("bench", "scaling", "--read", "/nowhere.json"), "/nowhere.json"),
        (("bench", "routes"), "--model"),
        (("bench", "routes", "--model", "resnet33"), "resnet32"),
        (("bench", "routes", "--model", "resnet32", "--rounds", "0"), "rounds=0"),
        (("bench", "routes", "--model", "resnet32", "--json", "/nowhere/at/all.json"), "/nowhere/at"),
        (("bench", "import", "--pairs", "0"), "pairs=0"),
        (("bench", "table"), "FILE"),
        (("bench", "table", "/nowhere.json"), "/nowhere.json"),
    ],
)
def test_wrong_input_ends_in_one_line(capsys, words, said):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("fngd: ")
    assert said in err


def test_a_run_is_trained_and_told_in_a_line(capsys, tmp_path):
    words = (
        "train",
        "digits-cnn",
        "fngd",
        "--scale",
        "smoke",
        "--out",
        tmp_path,
        "--set",
        "alpha=0.01",
        "--lr",
        "0.05",
    )
    code, out, err = run(capsys, *words)
    assert code == 0
    assert out.startswith("finished: accuracy ")
    assert "epoch 2.00, loss " in err
    record = reader.read(tmp_path / "digits-cnn-smoke-fngd-seed0")
    assert record.settings.hyperparameters["alpha"] == 0.01
    assert record.settings.hyperparameters["lr"] == 0.05
    assert run(capsys, *words)[0] == 2
    assert run(capsys, *words, "--resume")[0] == 0


def test_methods_are_compared_and_reported(capsys, tmp_path):
    page = tmp_path / "page.html"
    words = ("--methods", "sgd-m,fngd", "--seeds", 2, "--scale", "smoke", "--out", tmp_path, "--page", page)
    code, out, err = run(capsys, "compare", "digits-cnn", *words)
    assert code == 0
    assert "sgd-m" in out
    assert "n = 2" in out
    assert "fngd seed 1 (4/4)" in err
    assert page.stat().st_size > 1e6
    assert run(capsys, "compare", "digits-cnn", *words, "--resume")[0] == 0


def test_a_diverged_run_ends_with_another_code(capsys, tmp_path):
    words = ("--scale", "smoke", "--epochs", 30, "--out", tmp_path, "--lr", "1e30")
    code, out, _ = run(capsys, "train", "digits-cnn", "sgd-m", *words)
    assert code == 1
    assert out.startswith("diverged: ")


def test_hyperparameters_are_tuned(capsys, tmp_path):
    words = ("--methods", "sgd-m,fngd", "--trials", 1, "--scale", "smoke", "--sampler", "grid", "--out", tmp_path)
    code, out, _ = run(capsys, "tune", "digits-cnn", *words)
    assert code == 0
    assert "lr=" in out


def test_stopping_is_not_a_traceback(capsys, monkeypatch):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "resolve", stop)
    assert run(capsys, "doctor", "resnet32") == (130, "", "fngd: stopped\n")


def test_a_step_is_priced_and_recorded(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "peak_bytes", lambda _request: 2**20)  # its process is tested in test_steps.py
    path = tmp_path / "record.json"
    words = ("--model", "small-cnn", "--methods", "sgd", "--steps", 2, "--batch", 4, "--json", path)
    code, out, err = run(capsys, "bench", "step", *words)
    assert code == 0
    assert "56,554 parameters" in out
    assert "1.000 [1.000, 1.000] (n = 2)" in out
    assert "peak memory of sgd" in err
    assert read(path).settings.steps == 2


def test_growth_is_fitted_recorded_drawn_and_drawn_again(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(scaling, "MOST_ROUNDS", 1)
    path, page, again = tmp_path / "record.json", tmp_path / "page.html", tmp_path / "again.html"
    words = ("--subject", "linear", "--axis", "batch", "--methods", "fngd-share", "--scale", "smoke", "--rounds", 1)
    code, out, err = run(capsys, "bench", "scaling", *words, "--json", path, "--out", page)
    assert code == 0
    assert "fngd-share" in out
    assert "linear, batch 2 to 8: difference of exponents" in out
    assert "linear, batch 8: round 1/1" in err
    assert read(path).settings.axes == ("batch",)
    code, repeated, err = run(capsys, "bench", "scaling", "--read", path, "--out", again)
    assert (code, err) == (0, "")
    assert repeated.splitlines()[:-1] == out.splitlines()[:-1]
    assert again.read_text() == page.read_text()


def test_routes_are_timed_recorded_and_judged(capsys, tmp_path):
    path = tmp_path / "record.json"
    words = ("--model", "small-cnn", "--batch", 2, "--rounds", 1, "--budget", 64, "--json", path)
    code, out, err = run(capsys, "bench", "routes", *words)
    assert code == 0
    assert "2 × 64 × 288 → 64" in out
    assert "The planner's choice is within 10 % of the best route on " in out
    assert "2 × 1 × 64 → 10: round 1/1" in err
    assert read(path).settings.budget_bytes == 64 * 2**20


def test_the_table_is_printed_or_put_into_the_readme(capsys, tmp_path, make_record):
    record, readme = tmp_path / "record.json", tmp_path / "README.md"
    write(make_record(fngd_share=1.01), record)
    code, printed, _ = run(capsys, "bench", "table", record)
    assert code == 0
    readme.write_text(f"# Title\n{BEGIN}\n{END}\n")
    assert run(capsys, "bench", "table", record, "--readme", readme)[0] == 0
    assert readme.read_text() == f"# Title\n{BEGIN}\n{printed}{END}\n"


def test_a_readme_without_markers_is_refused_and_left_alone(capsys, tmp_path, make_record):
    record, readme = tmp_path / "record.json", tmp_path / "README.md"
    write(make_record(), record)
    readme.write_text("# Title\n")
    code, _, err = run(capsys, "bench", "table", record, "--readme", readme)
    assert code == 2
    assert "price table" in err
    assert readme.read_text() == "# Title\n"


def test_the_doctor_prints_what_the_library_says(capsys, monkeypatch):
    import fngd

    monkeypatch.setattr(fngd, "doctor", lambda model, *inputs: f"{type(model).__name__} {inputs[0].shape[0]}")
    assert run(capsys, "doctor", "small-cnn", "--batch", 3) == (0, "Sequential 3\n", "")
    assert run(capsys, "doctor", "small-cnn") == (0, "Sequential 64\n", "")


def test_the_command_runs_as_a_module():
    command = [sys.executable, "-m", "fngd_bench.cli", "bench", "table", "/nowhere.json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.parametrize(("terminal", "said"), [("1", "third"), ("", "1/3 first\n3/3 third\n")])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch, terminal, said):
    monkeypatch.setenv("FORCE_COLOR", terminal)
    with console.progress(3) as advance:
        for name in ("first", "second", "third"):
            advance(name)
    err = capsys.readouterr().err
    assert said in err
    assert ("\x1b" in err) == bool(terminal)


def test_a_training_bar_keeps_the_time_left_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    at = Progress(step=5, total=10, epoch=1.5, loss=1.0, metric_name="accuracy", metric=0.5, samples_per_second=100.0)
    with console.training(["a-workload-with-a-long-name a-method-with-one"]) as report:
        report(0, at)
    said = capsys.readouterr().err
    assert "50%" in said
    assert ":--" in said or "0:00" in said
    assert "a-workload" in said
