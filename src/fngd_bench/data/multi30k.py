"""Multi30K, task 1: descriptions of photographs in English and German (Elliott et al., 2016), one a line.

The authors' site is a git repository. It publishes no list of checksums, but a commit of it names its files for good:
the checksums here are those of the files of `COMMIT`.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from fngd_bench.data import checksums, published
from fngd_bench.data.checksums import Checksum, File, sha1
from fngd_bench.data.dataset import DataSet, Facts
from fngd_bench.data.download import Remote, download
from fngd_bench.data.progress import Display
from fngd_bench.data.types import Sentences, TextData
from fngd_bench.errors import InputError

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
SITE = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"


class Text(NamedTuple):
    """A file of sentences, as it lies here and as it is fetched."""

    file: File
    remote: Remote


class Split(NamedTuple):
    """A part of the data in both languages."""

    lines: int
    english: Text
    german: Text


def text(name: str, plain: str, packed: str, site: str = SITE) -> Text:
    """A file by its name and the SHA-1 of its plain and of its compressed form."""
    return Text(File(f"multi30k/{name}", sha1(plain)), Remote(f"{site}/{name}.gz", Checksum("sha1", packed)))


@final
@dataclass(frozen=True, kw_only=True)
class Multi30K(DataSet):
    """German to English; `reversed()` of the data goes the other way."""

    facts: Facts
    train: Split
    validation: Split
    test: Split

    def absent(self, folder: Path) -> Path | None:
        """The first file that is not there."""
        return published.first_absent(folder, self._files())

    def read(self, folder: Path) -> TextData:
        """All sentences, each file held against its checksum."""
        train, validation, test = (self._sentences(folder, split) for split in self._splits())
        return TextData(
            name=self.facts.name,
            source_language="de",
            target_language="en",
            train=train,
            validation=validation,
            test=test,
        )

    def verify(self, folder: Path, display: Display) -> str:
        """Hold every file against its checksum, and count its lines."""
        said = published.verify(folder, self._files(), self.facts.name, display)
        self.read(folder)
        return said

    def fetch(self, folder: Path, display: Display) -> str:
        """Download every file that is not there and whole."""
        if published.whole(folder, self._files()):
            return "is there already, and whole"
        for wanted in self._texts():
            if not published.whole(folder, [wanted.file]):
                _fetch(wanted, folder, display)
        return f"is in {(folder / self._files()[0].path).parent}"

    def _splits(self) -> tuple[Split, Split, Split]:
        return self.train, self.validation, self.test

    def _texts(self) -> list[Text]:
        return [wanted for split in self._splits() for wanted in (split.english, split.german)]

    def _files(self) -> list[File]:
        return [wanted.file for wanted in self._texts()]

    def _sentences(self, folder: Path, split: Split) -> Sentences:
        return Sentences(*(self._lines(folder, wanted.file, split.lines) for wanted in (split.german, split.english)))

    def _lines(self, folder: Path, file: File, count: int) -> tuple[str, ...]:
        content = checksums.read_checked(folder, file, published.anew(self.facts.name, folder))
        return lines(content.decode("utf-8"), folder / file.path, count)


def lines(content: str, path: Path, count: int) -> tuple[str, ...]:
    """The lines of a file, without white space around them.

    Args:
        content: The text. Only a line feed ends a line: str.splitlines would also break at rarer characters, and
            sentences would lose their partners.
        path: The file, for the message.
        count: How many there must be.

    Returns:
        The lines.

    Raises:
        InputError: If there are more or fewer.
    """
    found = tuple(line.strip() for line in content.removesuffix("\n").split("\n"))
    if len(found) != count:
        raise InputError(f"{path} has {len(found):,} lines, not {count:,}; fetch it again")
    return found


def _fetch(wanted: Text, folder: Path, display: Display) -> None:
    """Download one file and unpack it; the compressed one is removed."""
    target = folder / wanted.file.path
    packed = target.with_name(f"{target.name}.gz")
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        download(wanted.remote, packed, display)
        part.write_bytes(gzip.decompress(packed.read_bytes()))
        part.replace(target)
        packed.unlink()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot write {target}: {error}; make room or choose another folder with --data") from error
