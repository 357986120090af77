"""Exponents and verdicts of records whose growth is known; the page and the table that show them."""

import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pytest
from made_growth import METHODS, SIZES, WOBBLE, made_record
from rich.console import Console

from fngd_bench.errors import InputError
from fngd_bench.price import growth
from fngd_bench.price.growth import growths, predicted
from fngd_bench.price.power import Power
from fngd_bench.price.record import read, read_scaling_record, write
from fngd_bench.price.scaling_record import Measurement, PartTimes
from fngd_bench.price.verdict import answer, verdicts
from fngd_bench.report import scaling, scaling_figures
from fngd_bench.report.tables import Table

ALL = (("linear", "batch"), ("convolution", "width"), ("mlp", "depth"), ("resnet", "batch"))


def of(record, method, quantity):
    (found,) = [g for g in growths(record) if (g.method, g.quantity) == (method, quantity)]
    return found


@pytest.mark.parametrize(
    ("method", "quantity", "exponent"),
    [
        ("sgd", growth.STEP, 1.0),
        ("fngd-share", growth.STEP, 1.0),
        ("fngd-share", growth.EXTRA, 1.0),
        ("fngd-share", growth.EXTRA_STATE, 1.0),
        ("kfac", growth.EXTRA, 0.0),
        ("kfac", growth.EXTRA_STATE, 0.0),
        ("sgd", growth.STATE, 0.0),
    ],
)
def test_the_exponent_that_made_the_record_is_found(method, quantity, exponent):
    found = of(made_record(), method, quantity)
    assert found.law.exponent == pytest.approx(exponent, abs=2 * found.law.error + 1e-3)
    assert found.law.error < 0.1


def test_a_constant_in_the_bytes_is_told_and_does_not_hide_the_exponent():
    found = of(made_record(), "fngd-share", growth.EXTRA_STATE)
    assert found.text == f"1.00, {round(100 * 100 / (100 + 4 * 512))} % fixed"


def test_peaks_are_fitted_where_they_were_measured():
    assert not any(found.quantity == growth.PEAK for found in growths(made_record()))
    assert of(made_record(peak=1000), "sgd", growth.PEAK).text.startswith("1.00")


def test_two_sizes_have_no_exponent():
    assert of(made_record(sizes=(16, 32)), "sgd", growth.STEP).text == "–"


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (Power(1.0, 0.0, 0.0, 1.0), "1.00"),
        (Power(-0.001, 0.1, 0.0, 1.0), "0.00 ± 0.10"),
        (Power(-0.5, 0.1, 0.0, 1.0), "−0.50 ± 0.10"),
        (Power(1.0, 0.03, 1.0, 1.0), "1.00 ± 0.03, 11 % fixed"),
        (Power(1.0, float("inf"), 0.0, 1.0), "in the noise"),
    ],
)
def test_an_exponent_is_told_with_what_is_known_of_it(law, text):
    assert growth.exponent_text(law, 8) == text


def test_the_paper_says_something_of_its_own_methods_only():
    assert predicted(growth.EXTRA, "fngd-share", "batch") == "1"
    assert predicted(growth.EXTRA_STATE, "fngd-share", "width") == "0"
    assert predicted(growth.EXTRA, "kfac", "depth") == "1"
    assert predicted(growth.EXTRA, "fngd-derive", "batch") is None
    assert predicted(growth.STEP, "kfac", "batch") is None


@pytest.mark.parametrize(("exponent", "alike"), [(0.0, True), (-0.2, True), (0.04, True), (0.2, False)])
def test_the_verdict_is_the_exponent_of_the_ratio(exponent, alike):
    (found,) = verdicts(made_record(share_exponent=exponent))
    assert found.sizes == SIZES[3:]
    assert found.difference == pytest.approx(exponent, abs=1e-9)
    assert found.low <= found.difference <= found.high
    assert found.grows_alike is alike


def test_a_verdict_that_noise_leaves_open_is_not_passed():
    record = made_record()
    noisy = tuple(
        replace(row, parts=(replace(row.parts[0], seconds=tuple(s * w**15 for s, w in pairs(row))),))
        if row.method == "fngd-share"
        else row
        for row in record.measured
    )
    (found,) = verdicts(replace(record, measured=noisy))
    assert found.grows_alike is None
    assert "leave it open on linear over batch" in answer((found,))


def pairs(row):
    return zip(row.parts[0].seconds, WOBBLE[row.point.size % 3 :] + WOBBLE[: row.point.size % 3], strict=True)


def test_the_answer_names_the_axes_on_which_it_grows_faster():
    slow, fast = verdicts(made_record()), verdicts(made_record(share_exponent=0.3, rows=(("mlp", "depth"),)))
    assert answer(slow) == "FNGD's sharing step grows no faster than SGD's on all 1 axes."
    assert answer(slow + fast).endswith("on 1 of 2 axes. It grows faster on mlp over depth.")
    assert "was not measured" in answer(verdicts(made_record(methods=("sgd", "kfac"))))


def test_a_busy_machine_is_told_of():
    assert made_record().surroundings.disturbance("Growth") is None
    assert made_record(others=None).surroundings.disturbance("Growth") is None
    assert "0.7 cores" in made_record(others=0.7).surroundings.disturbance("Growth")


def test_kinds_of_step_are_counted_by_how_often_they_come():
    parts = (
        PartTimes(name="plain", share=0.9, seconds=(1.0, 2.0)),
        PartTimes(name="inverse", share=0.1, seconds=(11.0, 2.0)),
    )
    row = replace(made_record().measured[0], parts=parts)
    assert row.seconds == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((), "above 0"),
        ((PartTimes(name="a", share=1.0, seconds=()),), "above 0"),
        ((PartTimes(name="a", share=1.0, seconds=(0.0,)),), "above 0"),
        ((PartTimes(name="a", share=0.5, seconds=(1.0,)),), "all steps"),
        (
            (PartTimes(name="a", share=0.5, seconds=(1.0,)), PartTimes(name="b", share=0.5, seconds=(1.0, 2.0))),
            "as many",
        ),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(parts, said):
    with pytest.raises(ValueError, match=said):
        Measurement(**{**vars(made_record().measured[0]), "parts": parts})


def test_a_record_survives_the_disk(tmp_path, make_record):
    record = made_record(rows=ALL, peak=7)
    write(record, tmp_path / "scaling.json")
    assert read(tmp_path / "scaling.json") == record == read_scaling_record(tmp_path / "scaling.json")
    write(make_record(), tmp_path / "step.json")
    with pytest.raises(InputError, match="another benchmark"):
        read_scaling_record(tmp_path / "step.json")


def test_the_terminal_has_a_row_for_each_method_and_axis():
    console = Console(width=300, file=StringIO())
    console.print(scaling.terminal_table(made_record(rows=ALL)))
    text = console.file.getvalue()
    assert text.count(" fngd-share ") == len(ALL)
    assert "1.00 ± " in text
    assert "[2 to 3]" in text


def test_the_page_shows_every_axis_with_what_the_paper_says_and_how_it_was_measured():
    text = scaling.page(made_record(rows=ALL, others=0.5))
    for subject, axis in ALL:
        assert f'id="{subject}-{axis}"' in text
        assert f'id="{subject}-{axis}-table"' in text
    assert "on all 4 axes" in text
    assert "0.5 cores" in text
    assert "0123456789ab" in text
    assert "paper: time beyond" in text


def test_a_page_without_the_sharing_step_has_no_verdict():
    text = scaling.page(made_record(methods=("sgd", "kfac")))
    assert "was not measured" in text
    assert 'id="verdicts"' not in text


def test_what_is_not_above_zero_is_not_drawn():
    record = made_record()
    cheap = tuple(
        replace(row, parts=(replace(row.parts[0], seconds=tuple(0.99 * s for s in row.seconds)),))
        if row.method == "sgd"
        else row
        for row in record.measured
    )
    fast = tuple(
        replace(row, parts=next(other.parts for other in cheap if other.method == "sgd" and other.point == row.point))
        if row.method == "fngd-share"
        else row
        for row in cheap
    )
    (section,) = [scaling._section(record, "linear", growths(replace(record, measured=fast)))]
    extra = section.axes[0].block.variants[0][1]
    share = next(trace for trace in extra["data"] if trace["uid"] == "fngd-share-points")
    assert share["y"] == []
    assert isinstance(section.axes[0].table, Table)
    assert METHODS[0] not in {trace["name"] for trace in extra["data"]}


def test_a_page_is_made_without_torch():
    code = "import sys, fngd_bench.report.scaling; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("values", "ticks"), [([1.0, 1000.0], 1), ([1.0, 10.0], "D2"), ([1.0, 1.2], None), ([], None)])
def test_an_axis_has_ticks_whether_it_spans_much_or_little(values, ticks):
    assert scaling_figures._ticks([{"y": values}]).get("dtick") == ticks
