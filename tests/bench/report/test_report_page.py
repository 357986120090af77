"""The page: one file, nothing from outside, all text escaped; and the command that writes it."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_up import ORIGIN, hand_made

from fngd_bench.cli.report import report
from fngd_bench.errors import InputError
from fngd_bench.price import record
from fngd_bench.report.page import held, page, pieces, write_page
from fngd_bench.report.sources import gather
from fngd_bench.report.tables import command

HOSTILE = "<img src=x onerror=alert(1)></script><!-- \"'"


class Seen(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.ids = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        if self.lasttag not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"[\s\u00a0]+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def written(runs):
    return page(runs, [])


def test_the_page_loads_nothing(written):
    seen = Seen(written)
    assert not {"iframe", "object", "embed", "base"} & set(seen.tags)
    assert [value for name, value in seen.attributes if name == "src"] == []
    links = [value for name, value in seen.attributes if name == "href"]
    assert all(link.startswith(("#", "data:")) for link in links)
    policies = [value for name, value in seen.attributes if name == "content" and "-src" in value]
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")


def test_every_link_of_the_contents_leads_somewhere_and_every_name_is_unique(written):
    seen = Seen(written)
    targets = {value[1:] for name, value in seen.attributes if name == "href" and value.startswith("#")}
    assert targets <= set(seen.ids)
    assert len(seen.ids) == len(set(seen.ids))


def test_the_page_says_first_what_the_control_and_the_coefficients_say(written):
    text = Seen(written).text
    first = text.index("What to know first", text.index("Provenance"))
    assert (
        first
        < text.index("less that of fngd-constant")
        < text.index("c̃ tends to one constant")
        < text.index("Results", first)
    )


def test_the_page_shows_all_runs_with_their_settings_and_commands(written, runs):
    text = Seen(written).text
    for run in runs:
        wanted = run.settings
        assert f"fngd train {wanted.workload} {wanted.method} --scale cpu --seed {wanted.seed} --epochs 8" in text
    assert "lr 0.1, momentum 0.9, weight_decay 0.0005, nesterov False, batch 128" in text
    assert "0123456789ab" in text
    assert "A processor, 2 cores, 2 threads" in text


def test_runs_that_did_not_finish_are_shown_as_such(written):
    text = Seen(written).text
    assert "15 runs (12 finished, 1 diverged, 1 unfinished, 1 stopped)" in text
    for words in ("adamw: 1 of 3 runs diverged", "kfac: 1 of 3 runs stopped", "fngd-constant: 1 of 3 runs unfinished"):
        assert words in text


def test_every_text_of_a_record_is_escaped():
    origin = replace(ORIGIN, cpu=HOSTILE, system=HOSTILE, torch=HOSTILE, commit=HOSTILE)
    run = hand_made(
        workload=HOSTILE,
        scale=HOSTILE,
        method=HOSTILE,
        hyperparameters={HOSTILE: HOSTILE},
        schedule=HOSTILE,
        metric=HOSTILE,
        origin=origin,
    )
    text = page([run], [])
    seen = Seen(text)
    assert "img" not in seen.tags
    assert seen.tags.count("script") == 3
    assert seen.text.count(HOSTILE) > 5


def test_the_command_of_a_run_names_all_of_its_settings():
    run = hand_made(
        method="fngd", seed=3, hyperparameters={"lr": 5e-4, "damping": None, "nesterov": False, "a b": "c d"}
    )
    assert command(run) == (
        "fngd train digits-cnn fngd --scale smoke --seed 3 --epochs 3 --batch 64 --set lr=0.0005 --set damping=None "
        "--set nesterov=False --set 'a b=c d'"
    )


def test_a_cell_breaks_at_commas_but_not_inside_an_interval():
    assert pieces("1.0 (n = 3), 1 stopped, 2 died") == ["1.0 (n = 3)", "1 stopped", "2 died"]
    assert pieces("1.01 [1.00, 1.02], 3") == ["1.01 [1.00, 1.02]", "3"]


def test_counts_of_runs_are_held_together():
    assert held("so (n = 2 < 3) it is") == "so (n\u00a0=\u00a02\u00a0<\u00a03) it is"


def test_the_same_records_make_the_same_page(runs, written):
    assert page(runs, []) == written


def test_a_page_of_prices_alone_is_a_page(make_record):
    text = Seen(page([], [make_record(fngd_share=1.01)])).text
    assert "1.010 [1.010, 1.010]" in text
    assert "no training runs" in text


def test_a_group_with_nothing_but_a_header_has_a_page():
    text = Seen(page([hand_made((), end=None)], [])).text
    assert "1 unfinished" in text


def test_the_page_is_written_whole(tmp_path, runs, written):
    path = tmp_path / "report.html"
    write_page(runs, [], path)
    assert path.read_text(encoding="utf-8") == written
    assert list(tmp_path.iterdir()) == [path]


def test_prices_are_found_beside_runs_and_other_files_are_not(tmp_path, comparison, make_record):
    (tmp_path / "runs").symlink_to(comparison)
    record.write(make_record(), tmp_path / "price.json")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "torn.json").write_text("{")
    found = gather([tmp_path, comparison, tmp_path / "price.json"])
    assert (len(found.runs), len(found.prices)) == (15, 1)
    assert len(gather([tmp_path / "price.json"]).prices) == 1


def test_a_damaged_price_record_is_refused_by_name(tmp_path, comparison):
    (tmp_path / "price.json").write_text('{"kind": "step", "measured": []}')
    with pytest.raises(InputError, match=r"price\.json"):
        gather([comparison, tmp_path])


def test_a_folder_without_records_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "none", tmp_path / "none.json"):
        with pytest.raises(InputError, match=str(place)):
            gather([place])


def test_the_command_prints_the_tables_and_the_path(tmp_path, capsys, comparison):
    path = tmp_path / "page.html"
    report([comparison], path)
    out = capsys.readouterr().out
    assert "cifar10-resnet32 · cpu" in out
    assert str(path) in out.replace("\n", "")
    assert path.stat().st_size > 1e6


def test_the_command_refuses_a_path_it_cannot_write_before_it_reads(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        report([tmp_path / "none"], tmp_path / "none" / "page.html")


def test_a_report_is_made_without_torch():
    code = "import sys, fngd_bench.report.page, fngd_bench.report.terminal; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
