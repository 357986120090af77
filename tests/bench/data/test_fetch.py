"""`fetch` and `verify` of whole data sets, small ones on a web site on this machine."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace

import pytest
import torch

from fngd_bench.data.checksums import File, md5, sha1
from fngd_bench.data.download import Remote
from fngd_bench.data.fetch import fetch, verify
from fngd_bench.data.multi30k import Multi30K, Split, text
from fngd_bench.data.sets import SETS, find, load
from fngd_bench.errors import InputError

ROOT = "cifar-10-batches-bin"


def hexdigest(content):
    return hashlib.sha1(content).hexdigest()


def packed(members):
    """A tar file of these names and contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def records(labels, seed):
    pixels = torch.randint(256, (len(labels), 3072), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return torch.cat([torch.tensor(labels, dtype=torch.uint8).unsqueeze(1), pixels], 1).numpy().tobytes()


TRAIN, TEST = records([3, 0, 9], 0), records([1], 1)
GOOD = {f"{ROOT}/data_batch_1.bin": TRAIN, f"{ROOT}/test_batch.bin": TEST}


@pytest.fixture
def publish(site, monkeypatch):
    """Put a small CIFAR-10 on the site: its archive has these members, its table the sums of `GOOD`."""

    def put(members):
        archive = site.files["/cifar-10-binary.tar.gz"] = packed(members)
        small = replace(
            find("cifar10"),
            remote=Remote(f"{site.url}/cifar-10-binary.tar.gz", md5(hashlib.md5(archive).hexdigest())),
            train=(File(f"{ROOT}/data_batch_1.bin", sha1(hexdigest(TRAIN))),),
            test=(File(f"{ROOT}/test_batch.bin", sha1(hexdigest(TEST))),),
        )
        monkeypatch.setitem(SETS, "cifar10", small)

    return put


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_an_archive_is_fetched_unpacked_and_cleaned_up(publish, tmp_path, quiet):
    publish(GOOD)
    folder = tmp_path / "not" / "there"
    assert fetch("cifar10", folder, quiet) == f"cifar10 is in {folder / ROOT}"
    assert tree(folder) == [ROOT, f"{ROOT}/data_batch_1.bin", f"{ROOT}/test_batch.bin"]
    data = load("cifar10", folder)
    assert data.train.labels.tolist() == [3, 0, 9]
    assert data.train.take(torch.tensor([2])).numpy().tobytes() == TRAIN[2 * 3073 + 1 :]


def test_what_is_there_and_whole_is_left_alone(publish, site, tmp_path, quiet):
    publish(GOOD)
    fetch("cifar10", tmp_path, quiet)
    assert fetch("cifar10", tmp_path, quiet) == "cifar10 is there already, and whole"
    assert len(site.asked) == 1


def test_a_corrupt_file_is_named_with_both_checksums_and_fetched_anew(publish, tmp_path, quiet):
    publish(GOOD)
    fetch("cifar10", tmp_path, quiet)
    spoilt = TRAIN[:-1] + bytes([TRAIN[-1] ^ 1])
    (tmp_path / ROOT / "data_batch_1.bin").write_bytes(spoilt)
    for look in (lambda: load("cifar10", tmp_path), lambda: verify(["cifar10"], tmp_path, quiet, print)):
        with pytest.raises(InputError, match=r"data_batch_1\.bin is corrupt.*fngd data fetch cifar10 --data") as error:
            look()
        assert hexdigest(spoilt) in str(error.value)
        assert hexdigest(TRAIN) in str(error.value)
    fetch("cifar10", tmp_path, quiet)
    assert len(load("cifar10", tmp_path).train) == 3


@pytest.mark.parametrize("name", ["../evil", f"{ROOT}/../../evil"])
def test_a_member_that_leads_out_of_the_folder_is_refused(publish, tmp_path, quiet, name):
    publish({**GOOD, name: b"evil"})
    folder = tmp_path / "data"
    with pytest.raises(InputError, match="refused and removed"):
        fetch("cifar10", folder, quiet)
    assert tree(tmp_path) == ["data"]


def test_an_absolute_path_in_an_archive_leads_nowhere(publish, tmp_path, quiet):
    evil = tmp_path / "evil"
    publish({**GOOD, str(evil): b"evil"})
    fetch("cifar10", tmp_path / "data", quiet)
    assert not evil.exists()
    assert [path.name for path in (tmp_path / "data").iterdir()] == [ROOT]


def test_a_link_out_of_the_folder_is_refused(publish, site, tmp_path, quiet, monkeypatch):
    publish(GOOD)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        link = tarfile.TarInfo(f"{ROOT}/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    site.files["/cifar-10-binary.tar.gz"] = buffer.getvalue()
    remote = find("cifar10").remote._replace(checksum=md5(hashlib.md5(buffer.getvalue()).hexdigest()))
    monkeypatch.setitem(SETS, "cifar10", replace(find("cifar10"), remote=remote))
    with pytest.raises(InputError, match="refused and removed"):
        fetch("cifar10", tmp_path, quiet)
    assert tree(tmp_path) == []


def test_an_archive_of_other_files_leaves_the_old_ones(publish, tmp_path, quiet):
    publish({f"{ROOT}/data_batch_1.bin": TRAIN, f"{ROOT}/test_batch.bin": TRAIN})
    old = tmp_path / ROOT / "old"
    old.parent.mkdir()
    old.write_text("old")
    with pytest.raises(InputError, match=r"test_batch\.bin is corrupt"):
        fetch("cifar10", tmp_path, quiet)
    assert old.read_text() == "old"


def test_an_archive_without_a_file_is_refused(publish, tmp_path, quiet):
    publish({f"{ROOT}/data_batch_1.bin": TRAIN})
    with pytest.raises(InputError, match=r"test_batch\.bin"):
        fetch("cifar10", tmp_path, quiet)
    assert not (tmp_path / ROOT).exists()


def test_what_is_no_archive_is_refused(publish, site, tmp_path, quiet, monkeypatch):
    publish(GOOD)
    page = site.files["/cifar-10-binary.tar.gz"] = b"<html>moved</html>"
    remote = find("cifar10").remote._replace(checksum=md5(hashlib.md5(page).hexdigest()))
    monkeypatch.setitem(SETS, "cifar10", replace(find("cifar10"), remote=remote))
    with pytest.raises(InputError, match="refused and removed"):
        fetch("cifar10", tmp_path, quiet)
    assert tree(tmp_path) == []


ENGLISH, GERMAN = "A dog.\nTwo  cats \u2028 sit.\n", "Ein Hund.\nZwei Katzen sitzen.\n"


@pytest.fixture
def small_texts(site, monkeypatch):
    """A Multi30K of two lines a split on the site."""

    def one(name, content):
        compressed = site.files[f"/{name}.gz"] = gzip.compress(content.encode())
        return text(name, hexdigest(content.encode()), hexdigest(compressed), site.url)

    def split(name, german=GERMAN):
        return Split(2, one(f"{name}.en", ENGLISH), one(f"{name}.de", german))

    def put(**changed):
        splits = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
        made = {key: split(name, changed.get(key, GERMAN)) for key, name in splits.items()}
        monkeypatch.setitem(SETS, "multi30k", Multi30K(facts=find("multi30k").facts, **made))

    return put


def test_texts_are_fetched_and_read(small_texts, tmp_path, quiet):
    small_texts()
    fetch("multi30k", tmp_path, quiet)
    names = [f"multi30k/{s}.{l}" for s in ("test_2016_flickr", "train", "val") for l in ("de", "en")]
    assert tree(tmp_path) == ["multi30k", *names]
    data = load("multi30k", tmp_path)
    assert (data.source_language, data.target_language) == ("de", "en")
    assert data.train.source == ("Ein Hund.", "Zwei Katzen sitzen.")
    assert data.test.target == ("A dog.", "Two  cats \u2028 sit.")
    assert data.reversed().train.source == data.train.target
    assert data.reversed().target_language == "de"
    assert data.reversed().reversed() == data


def test_only_the_text_that_is_missing_is_fetched(small_texts, site, tmp_path, quiet):
    small_texts()
    fetch("multi30k", tmp_path, quiet)
    (tmp_path / "multi30k" / "val.de").unlink()
    site.asked.clear()
    fetch("multi30k", tmp_path, quiet)
    assert len(site.asked) == 1
    assert fetch("multi30k", tmp_path, quiet) == "multi30k is there already, and whole"


def test_a_line_without_a_partner_is_refused(small_texts, tmp_path, quiet):
    small_texts(validation="Ein Hund.\n")
    fetch("multi30k", tmp_path, quiet)
    for look in (lambda: load("multi30k", tmp_path), lambda: verify(["multi30k"], tmp_path, quiet, print)):
        with pytest.raises(InputError, match=r"val\.de has 1 lines, not 2"):
            look()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "multi30k", "tiny20", "imagenet"])
def test_missing_data_are_named_with_the_command_to_get_them(tmp_path, name):
    with pytest.raises(InputError) as error:
        load(name, tmp_path)
    assert f"`fngd data fetch {name} --data {tmp_path}`" in str(error.value)


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path, quiet):
    for look in (lambda: load("cifar11"), lambda: fetch("cifar11", tmp_path, quiet)):
        with pytest.raises(InputError, match=r"'cifar11'.*digits, numbers, cifar10"):
            look()


@pytest.mark.parametrize("name", ["digits", "numbers"])
def test_embedded_data_need_no_file(tmp_path, quiet, name):
    assert "needs no file" in fetch(name, tmp_path / "data", quiet)
    assert load(name, tmp_path / "nowhere").name == name


@pytest.mark.parametrize(("name", "said"), [("imagenet", "licence.*image-net.org"), ("tiny20", "no site of its own")])
def test_what_cannot_be_fetched_says_where_it_goes(tmp_path, quiet, name, said):
    with pytest.raises(InputError, match=f"{said}.*{SETS[name].root}/{{train,val}}/CLASS/"):
        fetch(name, tmp_path, quiet)


def test_a_folder_that_cannot_be_made_is_said(tmp_path, quiet):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        fetch("digits", tmp_path / "file" / "data", quiet)


def test_published_files_come_from_their_own_sites():
    assert {SETS[name].remote.url for name in ("cifar10", "cifar100")} == {
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    }
    assert SETS["multi30k"].train.english.remote.url.startswith("https://raw.githubusercontent.com/multi30k/dataset/")
