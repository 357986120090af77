"""Whole files only: what is read is held against its published checksum.

MD5 and SHA-1 are what the data sets' authors published. They guard against broken transfers and disks, not against
somebody who forges a file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, NamedTuple

from fngd_bench.errors import InputError

Algorithm = Literal["md5", "sha1"]


class Checksum(NamedTuple):
    """A published checksum."""

    algorithm: Algorithm
    value: str
    """Hexadecimal, small letters."""


class File(NamedTuple):
    """A file of a data set."""

    path: str
    """From the data folder on."""
    checksum: Checksum


def md5(value: str) -> Checksum:
    """A published MD5."""
    return Checksum("md5", value)


def sha1(value: str) -> Checksum:
    """A published SHA-1."""
    return Checksum("sha1", value)


def digest(path: Path, algorithm: Algorithm) -> str:
    """The checksum of a file as it is.

    Args:
        path: The file.
        algorithm: Which checksum.

    Returns:
        Hexadecimal.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise InputError(unreadable(path, error)) from error


def read_checked(folder: Path, file: File, way_out: str) -> bytes:
    """The content of a file, if it is the published one.

    Args:
        folder: The data folder.
        file: The file.
        way_out: What the user can do about a file that is not.

    Returns:
        Its bytes.

    Raises:
        InputError: If it cannot be read or its checksum is another.
    """
    path = folder / file.path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(unreadable(path, error)) from error
    found = hashlib.new(file.checksum.algorithm, content, usedforsecurity=False).hexdigest()
    compare(str(path), found, file.checksum, way_out)
    return content


def compare(name: str, found: str, published: Checksum, way_out: str) -> None:
    """Refuse a checksum that is not the published one.

    Args:
        name: Of what was hashed, for the message.
        found: Its checksum.
        published: What it should be.
        way_out: What the user can do.

    Raises:
        InputError: With both checksums, if they differ.
    """
    if found != published.value:
        sums = f"its {published.algorithm} is {found}, not the published {published.value}"
        raise InputError(f"{name} is corrupt: {sums}; {way_out}")


def unreadable(path: Path, error: OSError) -> str:
    """What to say of a file that cannot be read."""
    return f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
