"""What users install: a source distribution and a wheel, in an environment that has torch and nothing of ours."""

import json
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import installed
import pytest

import fngd

HERE = Path(__file__).parent
STRICT = {"typeCheckingMode": "strict"}
"""Of pyright's own modes the one that lets nothing unknown pass."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return installed.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    return installed.install(built[1], tmp_path_factory.mktemp("environment"))


def test_the_wheel_holds_the_packages_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fngd", "fngd_bench", f"fngd-{fngd.__version__}.dist-info"}
    source = installed.ROOT / "src"
    kept = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.suffix in {".py", ".typed"}}
    assert kept <= names
    assert {"fngd/py.typed", "fngd_bench/py.typed"} <= kept
    assert any(name.startswith("fngd_bench/report/templates/") for name in names)
    assert f"fngd-{fngd.__version__}.dist-info/licenses/LICENSE" in names


def test_the_source_distribution_holds_all_that_its_tests_need(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "Makefile", "constraints.txt"} <= names
    for folder in installed.FOLDERS:
        files = [path for path in (installed.ROOT / folder).rglob("*") if path.is_file()]
        wanted = {path.relative_to(installed.ROOT).as_posix() for path in files if _is_source(path)}
        assert wanted <= names, sorted(wanted - names)


def test_the_metadata_say_what_a_user_asks_for(built):
    with zipfile.ZipFile(built[1]) as wheel:
        metadata = Parser().parsestr(wheel.read(f"fngd-{fngd.__version__}.dist-info/METADATA").decode())
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("fngd", fngd.__version__, "MIT")
    assert metadata["Description-Content-Type"] == "text/markdown"
    needs = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert needs == ["torch>=2.6"]


def test_the_installed_library_trains_in_both_phases(environment, tmp_path):
    said = installed.run(environment / "python", HERE / "smoke.py", cwd=tmp_path)
    assert f"fngd {fngd.__version__}: 3 steps derived, 3 shared" in said


@pytest.mark.parametrize("words", [(), ("--help",), ("demo",)])
def test_the_command_says_in_one_line_which_extra_it_needs(environment, tmp_path, words):
    said = installed.run(environment / "fngd", *words, cwd=tmp_path, code=1)
    assert said.count("\n") == 1
    assert said.startswith("fngd: the package 'typer' is not installed.")
    assert "pip install 'fngd[bench]'" in said


def test_a_users_typed_program_runs(environment, tmp_path):
    installed.run(environment / "python", HERE / "typed_user.py", cwd=tmp_path)


def test_the_typed_program_uses_every_public_name():
    text = (HERE / "typed_user.py").read_text(encoding="utf-8")
    assert [name for name in fngd.__all__ if f"fngd.{name}" not in text] == []


def test_mypy_knows_all_types_from_outside(environment, tmp_path):
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "",
        "--python-executable",
        environment / "python",
    )
    said = installed.run(*mypy, "--cache-dir", tmp_path, HERE / "typed_user.py", cwd=tmp_path)
    assert "no issues found in 1 source file" in said


def test_pyright_knows_all_types_from_outside(environment, tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(STRICT), encoding="utf-8")
    (tmp_path / "user.py").write_text((HERE / "typed_user.py").read_text(encoding="utf-8"), encoding="utf-8")
    said = installed.run(*_pyright("--pythonpath", environment / "python", "user.py"), cwd=tmp_path)
    assert said.startswith("0 errors, 0 warnings")


def test_every_public_symbol_has_a_known_type(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(environment), prepend=":")
    report = installed.run(*_pyright("--verifytypes", "fngd", "--ignoreexternal", "--outputjson"), cwd=tmp_path)
    found = json.loads(report)["typeCompleteness"]
    assert [symbol for symbol in found["symbols"] if not symbol["isTypeKnown"]] == []
    assert found["completenessScore"] == 1


def _pyright(*words):
    return (sys.executable, "-m", "basedpyright", *words)


def _is_source(path):
    return path.suffix not in {".pyc", ".pyo"} and not any(part.endswith(".egg-info") for part in path.parts)
