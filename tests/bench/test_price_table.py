"""Records become the table of prices, and the table goes where its markers are."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from fngd_bench.errors import InputError
from fngd_bench.files import check_writable, write_text
from fngd_bench.price import table as price_table
from fngd_bench.price.prices import prices
from fngd_bench.price.record import read, write
from fngd_bench.price.surroundings import Surroundings
from fngd_bench.price.table import BEGIN, END, insert, table


def test_a_row_holds_the_ratios_of_its_record(make_record):
    text = table([make_record(fngd_share=1.01, fngd_derive=2.5, fngd_refreshed=1.05, fngd_head=1.004)])
    row = text.splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "resnet32",
        "128",
        "20",
        "1.010 [1.010, 1.010]",
        "2.500 [2.500, 2.500] missed",
        "1.050 [1.050, 1.050]",
        "1.004 [1.004, 1.004]",
        "1.010 [1.010, 1.010]",
        "2.500 [2.500, 2.500] missed",
    ]


def test_goals_are_in_the_header_and_a_miss_is_said(make_record):
    text = table([make_record(fngd_share=1.04), make_record(fngd_constant=1.004)])
    header, share, constant = (text.splitlines()[line] for line in (0, 2, 3))
    assert all(goal in header for goal in ("≤ 1.02", "≤ 1.005", "≤ 1.03"))
    assert "deriving" not in header  # nobody measured it
    assert (share.count("1.040 [1.040, 1.040] missed"), share.count("–")) == (2, 1)
    assert (constant.count("missed"), constant.count("–")) == (0, 2)


def test_an_interval_that_reaches_above_the_goal_leaves_it_open(make_record):
    record = make_record(fngd_share=1.0)
    sgd, share = record.measured
    seven_slow = sgd.seconds[:13] + tuple(1.05 * second for second in sgd.seconds[13:])
    assert "| 1.000 [1.000, 1.050] open |" in table(
        [replace(record, measured=(sgd, replace(share, seconds=seven_slow)))]
    )


def test_all_lines_of_the_table_have_as_many_cells(make_record):
    lines = table([make_record(), make_record(model="vgg11")]).splitlines()[:4]
    assert len({line.count("|") for line in lines}) == 1


def test_each_processor_has_a_table_of_its_own(make_record):
    here, other = make_record(fngd_share=1.01), make_record(fngd_derive=1.4)
    elsewhere = replace(other, provenance=replace(other.provenance, cpu="Another processor"))
    lines = table([here, elsewhere, make_record(model="vgg11", fngd_share=1.0)]).splitlines()
    second = lines.index("On Another processor:")
    assert lines[0] == f"On {here.provenance.cpu}:"
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| resnet32", "| vgg11"]
    assert lines[4].count("|") == 6
    assert "deriving step" in lines[second + 2]
    assert "sharing step" not in lines[second + 2]
    assert lines[second + 4].startswith("| resnet32 | 128 | 20 | 1.400")
    assert "On " not in table([here]).splitlines()[0]


def test_imports_and_sources_are_named_once(make_record, import_record):
    text = table([make_record(), make_record(model="vgg11"), import_record])
    assert "`import fngd` takes 1.020 [1.020, 1.020] × the time of `import torch`" in text
    assert text.count("A processor") == 1
    assert "commit 0123456789ab." in text


def test_a_changed_source_is_named(make_record):
    record = make_record()
    changed = replace(record, provenance=replace(record.provenance, dirty=True))
    unknown = replace(record, provenance=replace(record.provenance, commit=None))
    text = table([changed, unknown])
    assert "with changes" in text
    assert "no commit" in text


def test_times_of_a_busy_machine_are_marked(make_record):
    def told(**found):
        return table([replace(make_record(), surroundings=Surroundings(**found))])

    assert "was timed" not in told(other_cores=0.1, stolen=0.02, dropped=7) + told()
    assert "resnet32 was timed while other processes kept 1.9 cores busy" in told(other_cores=1.9)
    assert "resnet32 was timed on a virtual machine from which its host took 6 % of the cores' time" in told(
        stolen=0.06
    )


def test_a_table_needs_a_step_record(import_record):
    with pytest.raises(InputError, match="bench step"):
        table([import_record])


def test_prices_are_medians_and_means(make_record):
    sgd, share = prices(make_record(steps=3, fngd_share=2.0))
    assert (sgd.median_ms, sgd.mean_ms) == pytest.approx((110.0, 110.0))
    assert share.peak_mib == pytest.approx(200.0)


def test_the_table_replaces_what_is_between_the_markers():
    document = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    assert insert(document, "new") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"
    assert insert(insert(document, "new"), "new") == insert(document, "new")


@pytest.mark.parametrize("document", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}"])
def test_missing_markers_are_refused(document):
    with pytest.raises(InputError, match="once below it"):
        insert(document, "new")


def test_a_record_survives_the_disk(tmp_path, make_record, import_record):
    for name, record in (("step", make_record(fngd_share=1.01)), ("import", import_record)):
        write(record, tmp_path / name)
        assert read(tmp_path / name) == record


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.pop("schema"),
        lambda record: record.update(schema=99),
        lambda record: record.update(kind="other"),
        lambda record: record.pop("provenance"),
        lambda record: record.update(extra=1),
        lambda record: record["measured"][0].update(method="other"),
        lambda record: record["measured"][0].update(seconds=[]),
        lambda record: record["measured"][0].update(seconds=[-1.0]),
        lambda record: record["measured"][0].update(seconds=[1.0]),
        lambda record: record["measured"][0].update(peak_bytes=[0, 0, 0]),
        lambda record: record["settings"].pop("steps"),
    ],
)
def test_a_spoilt_record_is_refused_by_name(tmp_path, make_record, spoil):
    path = tmp_path / "record.json"
    write(make_record(fngd_share=1.01), path)
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"record\.json"):
        read(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\0"])
def test_what_is_no_record_is_refused_by_name(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"record\.json"):
        read(path)


def test_files_are_replaced_whole_with_their_permissions(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be_written_are_refused_early(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "file"):
        with pytest.raises(InputError, match="cannot write"):
            check_writable(path)
    check_writable(tmp_path / "file")


def test_tables_are_made_without_torch():
    code = f"import sys, {price_table.__name__}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
