"""Figures say what the runs say, plotly knows every word in them, and a method looks the same everywhere."""

import itertools
import json
import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from made_up import METHODS, hand_made, layer

from fngd_bench.report.bars import bar_blocks, breakdown_figure, memory_figure
from fngd_bench.report.curves import curve_blocks, loss_figure, metric_figure, points
from fngd_bench.report.maps import DIVERGING, STATISTICS, coefficient_figure, gram_figure, map_blocks
from fngd_bench.report.page import embedded
from fngd_bench.report.style import COLOURS, DASHES, Block, clean, looks, plain, short
from fngd_bench.report.summary import groups
from fngd_bench.runs.events import Coefficients

HOSTILE = "</script><!--<img src=x onerror=alert(1)>&amp;"


@pytest.fixture(scope="module")
def group(runs):
    (group,) = groups(runs)
    return group


@pytest.fixture(scope="module")
def drawn(group):
    return looks(summary.method for summary in group.methods)


def of(figure, method, mode="lines+markers"):
    return next(trace for trace in figure["data"] if trace["legendgroup"] == method and trace["mode"] == mode)


def test_plotly_knows_every_word_of_every_figure(group, drawn):
    blocks = [*curve_blocks(group, drawn, "g"), *bar_blocks(group, drawn, "g"), *map_blocks(group, "g")]
    figures = [figure for block in blocks for variant in block.variants for figure in variant]
    assert len(figures) > 25
    for figure in figures:
        for trace in figure["data"]:
            signed = {"colorscale": "RdBu"} if trace.get("colorscale") == DIVERGING else {}
            go.Figure(data=[trace | signed])
        go.Figure(layout=figure["layout"])


def test_every_choice_has_its_variant_and_every_key_is_unique(group, drawn):
    blocks = [*curve_blocks(group, drawn, "g"), *bar_blocks(group, drawn, "g"), *map_blocks(group, "g")]
    assert len({block.key for block in blocks}) == len(blocks) == 8
    for block in blocks:
        assert len(block.variants) == math.prod(len(choice.options) for choice in block.choices)


def test_every_caption_says_how_many_runs(group, drawn):
    blocks = [*curve_blocks(group, drawn, "g"), *bar_blocks(group, drawn, "g"), *map_blocks(group, "g")]
    assert all("Runs: " in block.caption or "n = " in block.caption for block in blocks)
    assert groups([hand_made(), hand_made(method="fngd")])[0].counts == "Runs of each method: n = 1 < 3."
    assert groups([hand_made(), hand_made(seed=1), hand_made(method="fngd")])[0].counts == "Runs: sgd-m 2, fngd 1."


def test_a_curve_is_the_mean_and_its_band_the_extremes():
    runs = [hand_made((0.2, 0.4), seed=0), hand_made((0.4, 0.8), seed=1, step_ms=300)]
    (group,) = groups(runs)
    figure = metric_figure(group, looks(["sgd-m"]), "seconds")
    line, band = of(figure, "sgd-m"), of(figure, "sgd-m", "lines")
    assert line["x"] == pytest.approx([0.4, 0.8])
    assert line["y"] == pytest.approx([30.0, 60.0])
    assert [n for *_, n in line["customdata"]] == [2, 2]
    assert band["y"] == pytest.approx([40.0, 80.0, 40.0, 20.0])
    assert of(metric_figure(group, looks(["sgd-m"]), "epochs"), "sgd-m")["x"] == [1, 2]


def test_a_run_that_ended_early_is_crossed_and_the_mean_goes_on_without_it():
    runs = [hand_made((0.2, 0.4), seed=0), hand_made((0.1,), seed=1, end="diverged")]
    (group,) = groups(runs)
    figure = metric_figure(group, looks(["sgd-m"]), "epochs")
    assert [n for *_, n in of(figure, "sgd-m")["customdata"]] == [2, 1]
    cross = of(figure, "sgd-m", "markers")
    assert (cross["x"], cross["y"], cross["text"]) == ([1], [10.0], ["seed 1 diverged here"])


def test_values_that_are_not_finite_are_left_out():
    run = hand_made((0.2, 0.4))
    spoilt = replace(run, epochs=(run.epochs[0], replace(run.epochs[1], test_loss=math.nan)))
    (group,) = groups([spoilt])
    assert [point.mean for point in points(group.methods[0], "test_loss", "epochs")] == [2.0]
    assert json.dumps(clean(loss_figure(group, looks(["sgd-m"]), "test loss", "epochs")), allow_nan=False)


def test_the_target_is_a_line():
    (group,) = groups([hand_made()])
    layout = metric_figure(group, looks(["sgd-m"]), "epochs")["layout"]
    assert layout["shapes"][0]["y0"] == layout["shapes"][0]["y1"] == 90.0
    assert layout["annotations"][0]["text"] == "target 90.00 %"
    (group,) = groups([hand_made(target=None)])
    assert "shapes" not in metric_figure(group, looks(["sgd-m"]), "epochs")["layout"]


def test_losses_have_a_logarithmic_axis_where_they_can():
    (group,) = groups([hand_made()])
    assert loss_figure(group, looks(["sgd-m"]), "test loss", "epochs")["layout"]["yaxis"]["type"] == "log"
    run = hand_made((0.5,))
    (group,) = groups([replace(run, epochs=(replace(run.epochs[0], test_loss=0.0),))])
    assert "type" not in loss_figure(group, looks(["sgd-m"]), "test loss", "epochs")["layout"]["yaxis"]


def test_a_method_has_one_look_in_all_figures_of_a_page(group, drawn):
    lines = [
        of(metric_figure(group, drawn, against), method)["line"]["color"]
        for method, against in itertools.product(METHODS, ("epochs", "seconds"))
    ]
    assert lines == [drawn[method].colour for method in METHODS for _ in range(2)]
    bars = memory_figure(group, drawn)["data"][0]["marker"]["color"]
    assert bars == [drawn[summary.method].colour for summary in group.methods]


def test_looks_differ_even_when_colours_are_used_up():
    names = [f"method {k}" for k in range(len(COLOURS) * len(DASHES))]
    found = looks([*names, "sgd-m"][: len(names)])
    assert len({(look.colour, look.dash) for look in found.values()}) == len(names)
    assert looks(["kfac", "sgd-m"])["sgd-m"].colour == COLOURS[0]


def test_bars_stack_the_sections_of_a_step():
    sections = {"update": 0.02, "forward": 0.04, "other": 0.06}
    (group,) = groups([hand_made((0.1,), sections=sections)])
    figure = breakdown_figure(group, "all_epochs")
    assert [(trace["name"], trace["x"]) for trace in figure["data"]] == [
        ("forward", [20.0]),
        ("update", [10.0]),
        ("other", [30.0]),
    ]


def test_memory_that_was_not_recorded_is_said():
    (group,) = groups([hand_made(end=None)])
    assert memory_figure(group, looks(["sgd-m"]))["data"][0]["text"] == ["\u2002not recorded"]


def test_a_coefficient_map_is_the_mean_over_runs():
    runs = [
        replace(
            hand_made(method="fngd", seed=seed),
            coefficients=(
                Coefficients(epoch=1, layers={"a": layer(cosine=0.4 + 0.2 * seed), "b": layer(damping=1e-2)}),
                Coefficients(epoch=2, layers={"a": layer(cosine=0.8)}),
            ),
        )
        for seed in range(2)
    ]
    (group,) = groups(runs)
    cosine = next(statistic for statistic in STATISTICS if statistic.field == "cosine")
    (trace,) = coefficient_figure(group.methods[0], cosine)["data"]
    assert trace["x"] == [1, 2]
    assert trace["z"][0] == pytest.approx([0.5, 0.8])
    assert math.isnan(trace["z"][1][1])
    damping = next(statistic for statistic in STATISTICS if statistic.field == "damping")
    (trace,) = coefficient_figure(group.methods[0], damping)["data"]
    assert trace["z"][1][0] == pytest.approx(-2.0)
    assert trace["customdata"][1][0] == pytest.approx(1e-2)


def test_the_colours_of_a_gram_matrix_end_at_its_largest_entry_off_the_diagonal():
    (trace,) = gram_figure("a", ((0.9, -0.2), (-0.2, 0.3)))["data"]
    assert (trace["zmin"], trace["zmax"]) == (-0.2, 0.2)
    assert gram_figure("", ((1.0,),))["layout"]["title"]["text"] == "layer model"
    (alone,) = gram_figure("a", ((1.0,),))["data"]
    assert (alone["zmin"], alone["zmax"]) == (-1.0, 1.0)


def test_without_coefficients_there_are_no_maps():
    (group,) = groups([hand_made()])
    assert map_blocks(group, "g") == ()


def test_plotly_is_given_no_tags():
    assert "<" not in plain(HOSTILE)
    assert short("a" * 100, 11) == "aaaaa…aaaaa"
    assert short(HOSTILE[:9]) == "&lt;/script&gt;"


def test_embedded_figures_end_no_script_and_read_back_as_they_were():
    figure = {"data": [{"type": "bar", "x": [math.nan, math.inf, 1 / 3]}], "layout": {"title": {"text": HOSTILE}}}
    text = embedded([Block(key="k", title="", caption="", variants=((figure,),))])
    assert not set("<>&") & set(text)
    (block,) = json.loads(text)
    assert block["variants"][0][0]["layout"]["title"]["text"] == HOSTILE
    assert block["variants"][0][0]["data"][0]["x"] == [None, None, 0.333333]
