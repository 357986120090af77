"""The page in a real browser: drawn, quiet, offline, dark or light, wide or narrow, and hostile text is only text."""

import os
from dataclasses import replace

import chromium
import pytest
from made_up import METHODS, ORIGIN, hand_made, read_all, write_comparison

from fngd_bench.report.page import write_page

HOSTILE = "<img src=x onerror=alert(1)></script>"
PLOTS = ".js-plotly-plot"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = chromium.find()
    if program is None:
        reason = f"there is no Chromium: none of {', '.join(chromium.NAMES)} is on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    one = chromium.Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory, runs):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(runs, [], path)
    return path


@pytest.fixture
def opened(browser, file):
    browser.scheme("light")
    browser.window(1400)
    browser.open(file)
    return browser


def visible(browser, key, method):
    """Whether the curve of a method is drawn in a block."""
    return browser.evaluate(
        f"document.getElementById('{key}-0')._fullData.find("
        f"t => t.legendgroup === '{method}' && t.mode === 'lines+markers').visible === true"
    )


def click_legend(browser, key, method):
    place = browser.evaluate(
        f"""(() => {{
            document.getElementById('{key}').scrollIntoView({{block: 'center', behavior: 'instant'}});
            const items = [...document.querySelectorAll('#{key}-0 .legend .traces')];
            const item = items.find(i => i.querySelector('.legendtext').textContent === '{method}');
            const box = item.querySelector('.legendtoggle').getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
    )
    browser.click(*place)


def test_every_plot_is_drawn_and_the_console_is_quiet(opened):
    drawn = opened.evaluate(
        f"[...document.querySelectorAll('.plot')].map(p => p.matches('{PLOTS}') && p.querySelector('.main-svg')"
        " && p.querySelectorAll('.scatterlayer .trace, .barlayer .trace, .heatmaplayer image').length)"
    )
    assert len(drawn) == 11
    assert all(drawn)
    assert opened.errors() == []


def test_no_button_sends_anything_away(opened):
    titles = opened.evaluate("[...new Set([...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title))]")
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]


def test_nothing_comes_from_the_network(opened, file):
    asked = opened.requests()
    assert asked[0] == file.resolve().as_uri()
    assert all(address.startswith(("data:", "blob:")) for address in asked[1:])


def test_a_click_in_the_legend_hides_the_curve_and_another_brings_it_back(opened):
    assert visible(opened, "g1-metric-epochs", "adamw")
    click_legend(opened, "g1-metric-epochs", "adamw")
    opened.wait("document.getElementById('g1-metric-epochs-0')._fullData.some(t => t.visible === 'legendonly')")
    hidden = opened.evaluate(
        "document.getElementById('g1-metric-epochs-0')._fullData"
        ".filter(t => t.visible !== true).map(t => t.legendgroup)"
    )
    assert set(hidden) == {"adamw"}
    assert len(hidden) == 3  # its band, its line and the cross of the run that diverged
    click_legend(opened, "g1-metric-epochs", "adamw")
    opened.wait("document.getElementById('g1-metric-epochs-0')._fullData.every(t => t.visible === true)")


def test_a_hidden_curve_stays_hidden_in_another_theme_and_with_another_loss(opened):
    click_legend(opened, "g1-loss-epochs", "kfac")
    opened.wait("document.getElementById('g1-loss-epochs-0')._fullData.some(t => t.visible === 'legendonly')")
    opened.evaluate("document.querySelector('#g1-loss-epochs select').value = '1'")
    opened.evaluate(
        "document.querySelector('#g1-loss-epochs select').dispatchEvent(new Event('change', {bubbles: true}))"
    )
    opened.wait("document.getElementById('g1-loss-epochs-0').layout.yaxis.title.text === 'training loss'")
    opened.evaluate("document.getElementById('theme').click()")
    opened.wait("document.documentElement.dataset.drawn === '2'")
    assert not visible(opened, "g1-loss-epochs", "kfac")
    assert visible(opened, "g1-loss-epochs", "fngd")
    assert opened.errors() == []


def test_a_point_tells_its_numbers_and_a_drag_zooms(opened):
    place = "document.getElementById('g1-metric-seconds-0')"
    x, y = opened.evaluate(
        f"""(() => {{
            {place}.scrollIntoView({{block: 'center', behavior: 'instant'}});
            const box = {place}.querySelector('.scatterlayer .points path').getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
    )
    opened.move(x, y)
    opened.wait(f"{place}.querySelector('.hoverlayer .hovertext')")
    assert "n = 3" in opened.evaluate(f"{place}.querySelector('.hoverlayer .hovertext').textContent")
    before = opened.evaluate(f"{place}._fullLayout.xaxis.range")
    opened.drag((x + 20, y - 80), (x + 80, y - 20))
    opened.wait(f"{place}._fullLayout.xaxis.range[0] > {before[0]}")
    assert opened.evaluate(f"{place}._fullLayout.xaxis.range[1]") < before[1]


def test_a_choice_changes_what_is_drawn(opened):
    read = "document.getElementById('g1-coefficients-0').data[0].z[1][0]"
    before = opened.evaluate(read)
    opened.evaluate("document.querySelectorAll('#g1-coefficients select')[1].selectedIndex = 3")
    opened.evaluate(
        "document.querySelectorAll('#g1-coefficients select')[1].dispatchEvent(new Event('change', {bubbles: true}))"
    )
    opened.wait(f"{read} !== {before}")
    assert opened.evaluate(read) == pytest.approx(24.0)  # effective rank of the second made-up layer


def test_the_page_follows_the_systems_theme_and_the_button_overrules_it(opened):
    colour = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('#g1-metric-epochs-0 .xtick text')).fill"
    light, light_text = opened.evaluate(colour), opened.evaluate(text)
    opened.scheme("dark")
    opened.wait("document.documentElement.dataset.drawn === '2'")
    assert opened.evaluate(colour) != light
    assert opened.evaluate(text) != light_text
    opened.evaluate("document.getElementById('theme').click()")
    opened.wait("document.documentElement.dataset.drawn === '3'")
    assert (opened.evaluate(colour), opened.evaluate(text)) == (light, light_text)


@pytest.mark.parametrize("width", [320, 390, 768, 1180, 1400])
def test_the_page_is_never_wider_than_its_window(opened, width):
    opened.window(width, mobile=width < 500)
    if width != 1400:
        opened.wait("document.documentElement.dataset.drawn === '2'")
    opened.wait(f"[...document.querySelectorAll('{PLOTS}')].every(p => p._fullLayout.width <= p.clientWidth + 1)")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    outside = opened.evaluate(
        f"[...document.querySelectorAll('.plot, h1, h2, h3, p, select, figcaption, .scroll')].filter("
        f"e => e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []


def test_hostile_text_is_shown_as_text(browser, tmp_path):
    runs = [
        hand_made(method=HOSTILE, workload=HOSTILE, seed=seed, origin=replace(ORIGIN, cpu=HOSTILE)) for seed in range(3)
    ]
    write_page(runs, [], tmp_path / "report.html")
    browser.scheme("light")
    browser.window(1400)
    browser.open(tmp_path / "report.html")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.querySelector('.legendtext').textContent") == HOSTILE
    assert HOSTILE in browser.evaluate("document.querySelector('#g1').textContent")
    assert HOSTILE in browser.evaluate("document.querySelector('#places ~ .scroll').textContent")
    assert browser.errors() == []


def test_twelve_methods_have_room(browser, tmp_path):
    more = {f"method-{k}-with-a-name": METHODS["adamw"] for k in range(8)}
    write_comparison(tmp_path / "runs", {**METHODS, **more}, seeds=(0,))
    write_page(read_all(tmp_path / "runs"), [], tmp_path / "report.html")
    browser.scheme("light")
    browser.window(390, mobile=True)
    browser.open(tmp_path / "report.html")
    heights = browser.evaluate(f"[...document.querySelectorAll('{PLOTS}')].map(p => p._fullLayout._size.h)")
    assert min(heights) >= 200
