"""Downloads against a web site on this machine: whole, resumed, refused."""

import hashlib
import socket
from pathlib import Path

import pytest

from fngd_bench.data import download as module
from fngd_bench.data.checksums import md5
from fngd_bench.data.download import Remote, download
from fngd_bench.errors import InputError

CONTENT = bytes(range(256)) * 4000
HALF = len(CONTENT) // 2


@pytest.fixture
def remote(site):
    site.files["/file.bin"] = CONTENT
    return Remote(f"{site.url}/file.bin", md5(hashlib.md5(CONTENT).hexdigest()))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file.bin"


@pytest.fixture
def part(tmp_path):
    return tmp_path / "file.bin.part"


def test_a_file_arrives_whole_and_alone(remote, site, target, quiet):
    download(remote, target, quiet)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def test_progress_is_told_up_to_the_end(remote, target):
    from contextlib import contextmanager

    told = []

    @contextmanager
    def display(name):
        told.append(name)
        yield lambda done, total: told.append((done, total))

    download(remote, target, display)
    assert told[0] == "file.bin"
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert told[1:] == sorted(told[1:])


def test_a_file_that_is_there_is_not_asked_for(remote, site, target, quiet):
    target.write_bytes(CONTENT)
    download(remote, target, quiet)
    assert site.asked == []


def test_a_cut_download_goes_on_where_it_stopped(remote, site, target, part, quiet):
    site.cut = HALF
    with pytest.raises(InputError, match=f"broke off after {HALF:,} of {len(CONTENT):,} bytes.*run the command again"):
        download(remote, target, quiet)
    assert part.read_bytes() == CONTENT[:HALF]
    assert not target.exists()
    site.cut = None
    download(remote, target, quiet)
    assert target.read_bytes() == CONTENT
    assert site.asked == [None, f"bytes={HALF}-"]


def test_a_server_that_sends_all_again_is_taken_at_its_word(remote, site, target, part, quiet):
    part.write_bytes(CONTENT[:HALF])
    site.ranges = False
    download(remote, target, quiet)
    assert target.read_bytes() == CONTENT
    assert site.asked == [f"bytes={HALF}-"]


def test_a_server_that_does_not_say_the_length_is_fine(remote, site, target, quiet):
    site.lengths = False
    download(remote, target, quiet)
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_all_is_kept(remote, site, target, part, quiet):
    part.write_bytes(CONTENT)
    download(remote, target, quiet)
    assert target.read_bytes() == CONTENT
    assert site.asked[0] == f"bytes={len(CONTENT)}-"


def test_a_part_that_is_too_long_is_thrown_away(remote, target, part, quiet):
    part.write_bytes(CONTENT + b"more")
    download(remote, target, quiet)
    assert target.read_bytes() == CONTENT
    assert not part.exists()


def test_a_wrong_checksum_is_said_with_both_and_the_next_fetch_starts_anew(remote, site, target, part, quiet):
    wrong = CONTENT[:HALF] + b"\xff" + CONTENT[HALF + 1 :]
    site.files["/file.bin"] = wrong
    with pytest.raises(InputError) as error:
        download(remote, target, quiet)
    assert hashlib.md5(wrong).hexdigest() in str(error.value)
    assert remote.checksum.value in str(error.value)
    assert list(target.parent.iterdir()) == []
    site.files["/file.bin"] = CONTENT
    download(remote, target, quiet)
    assert site.asked == [None, None]


def test_a_missing_file_is_said_with_the_servers_words(remote, site, target, quiet):
    with pytest.raises(InputError, match=r"nothing\.bin: the server answered 404 Not Found"):
        download(remote._replace(url=f"{site.url}/nothing.bin"), target, quiet)


def test_no_network_is_said_in_one_line(remote, site, target, quiet):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"
        with pytest.raises(InputError, match="check the network") as error:
            download(remote._replace(url=url), target, quiet)
    assert "\n" not in str(error.value)


def test_a_server_that_falls_silent_is_not_waited_for(remote, site, target, quiet, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/file.bin"
        with pytest.raises(InputError, match="timed out"):
            download(remote._replace(url=url), target, quiet)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_is_said_in_one_line(remote, target, part, quiet):
    part.symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"No space left on device.*make room"):
        download(remote, target, quiet)
