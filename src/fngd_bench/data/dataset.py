"""What every data set can do: say what it is, read itself, check itself, get itself."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from fngd_bench.data.progress import Display
from fngd_bench.data.types import Data


class Facts(NamedTuple):
    """What `fngd data list` says of a data set."""

    name: str
    what: str
    samples: str
    """Those of training, then those held back."""
    size: str
    """Of what is fetched."""
    where: str
    """Its own site, or what it comes with."""


def command(name: str, folder: Path) -> str:
    """The command that gets a data set, or says how to get it."""
    return f"fngd data fetch {name} --data {shlex.quote(str(folder))}"


class DataSet(ABC):
    """A data set, given the folder of all data sets."""

    facts: Facts

    @property
    def origin(self) -> str:
        """The name of the data set that the files are of: its own, unless it is made of another."""
        return self.facts.name

    @abstractmethod
    def absent(self, folder: Path) -> Path | None:
        """The first file or folder that is needed and not there. Looks at names only, so it is quick."""

    @abstractmethod
    def read(self, folder: Path) -> Data:
        """The data, from files that are there.

        Args:
            folder: The data folder.

        Returns:
            The data.

        Raises:
            InputError: If a file is not what it should be.
        """

    @abstractmethod
    def verify(self, folder: Path, display: Display) -> str:
        """Read every byte of files that are there.

        Args:
            folder: The data folder.
            display: Shows how many files were read.

        Returns:
            What was found right, in a few words.

        Raises:
            InputError: If a file is not what it should be.
        """

    @abstractmethod
    def fetch(self, folder: Path, display: Display) -> str:
        """Get the files, unless they are there and whole.

        Args:
            folder: The data folder, which exists.
            display: Shows the bytes on their way.

        Returns:
            What was done, in a few words.

        Raises:
            InputError: If it cannot be done; the message says what the user can do.
        """


@final
@dataclass(frozen=True)
class Embedded(DataSet):
    """A data set that needs no file."""

    facts: Facts
    make: Callable[[], Data]

    def absent(self, folder: Path) -> Path | None:  # noqa: ARG002
        """Nothing is needed."""
        return None

    def read(self, folder: Path) -> Data:  # noqa: ARG002
        """Made on the spot."""
        return self.make()

    def verify(self, folder: Path, display: Display) -> str:  # noqa: ARG002
        """There is nothing to check."""
        return f"needs no file ({self.facts.where})"

    def fetch(self, folder: Path, display: Display) -> str:  # noqa: ARG002
        """There is nothing to get."""
        return f"needs no file ({self.facts.where})"
