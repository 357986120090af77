"""`fngd data`, and the folder it looks at."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fngd_bench import cli
from fngd_bench.cli import data as command
from fngd_bench.data import progress
from fngd_bench.data.folder import data_folder
from fngd_bench.data.sets import SETS


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(["data", *(str(word) for word in words)])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


@pytest.mark.parametrize("name", ["list", "fetch", "verify"])
def test_help_of_data_shows_an_example(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(command.app, [name, "--help"])
    assert result.exit_code == 0
    assert f"Example: fngd data {name}" in result.output


def test_help_names_every_data_set():
    assert command.NAMES.split(", ") == list(SETS)


def test_the_list_says_what_is_there(capsys, tmp_path):
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    for split in ("train", "val"):
        (tmp_path / "tiny-imagenet-20" / split).mkdir(parents=True)
    code, out, _ = run(capsys, "list", "--data", tmp_path)
    assert code == 0
    lines = {line.split()[1]: line for line in out.splitlines() if re.match(r"│ \w", line)}
    assert list(lines) == list(SETS)
    present = {name for name, line in lines.items() if "present" in line}
    assert present == {"digits", "numbers", "tiny20", "digits-noisy", "digits-longtail"}
    assert all("missing" in line for name, line in lines.items() if name not in present)


def test_embedded_data_are_fetched_in_no_time(capsys, tmp_path):
    code, out, err = run(capsys, "fetch", "digits", "--data", tmp_path / "data")
    assert (code, err) == (0, "")
    assert "needs no file" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fetch",), "NAME"),
        (("fetch", "cifar11"), "cifar10"),
        (("fetch", "imagenet"), "licence"),
        (("verify", "cifar11"), "cifar10"),
        (("verify", "digits", "cifar10"), "fngd data fetch cifar10"),
        (("verify", "cifar10-noisy"), "fngd data fetch cifar10 "),
    ],
)
def test_wrong_input_to_data_ends_in_one_line(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.setenv("FNGD_DATA", str(tmp_path))
    code, _, err = run(capsys, *words)
    assert code == 2
    assert err.startswith("fngd: ")
    assert err.count("\n") == 1
    assert said in err


def test_verify_without_names_looks_at_what_is_there(capsys, tmp_path):
    code, out, _ = run(capsys, "verify", "--data", tmp_path)
    assert code == 0
    assert out.splitlines()[0] == "digits: needs no file (comes with scikit-learn)"
    assert "cifar10: missing" in out.splitlines()


def test_the_folder_is_the_option_or_the_variable_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FNGD_DATA", "~/named")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder(Path("option")) == Path("option")
    assert data_folder() == Path.home() / "named"
    monkeypatch.setenv("FNGD_DATA", "")
    assert data_folder() == tmp_path / "cache" / "fngd"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_folder() == Path.home() / ".cache" / "fngd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "fngd"


@pytest.mark.parametrize(
    ("display", "plain"),
    [
        (progress.transfer, "x: 2.0 MB of 6.0 MB\nx: 6.0 MB of 6.0 MB\n"),
        (progress.counting, "x: 2,000,000 of 6,000,000\nx: 6,000,000 of 6,000,000\n"),
    ],
)
@pytest.mark.parametrize("terminal", ["1", ""])
def test_transfers_are_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch, display, plain, terminal):
    monkeypatch.setenv("FORCE_COLOR", terminal)
    with display("x") as watch:
        watch(2_000_000, 6_000_000)
        watch(4_000_000, 6_000_000)
        watch(6_000_000, 6_000_000)
    err = capsys.readouterr().err
    assert ("\x1b" in err) == bool(terminal)
    assert terminal or err == plain


def test_a_length_that_is_not_known_is_not_said(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "")
    with progress.transfer("x") as watch:
        watch(2_000_000, None)
    assert capsys.readouterr().err == "x: 2.0 MB\n"
