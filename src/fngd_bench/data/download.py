"""One file from the web: into a `.part` file, which the next attempt goes on with; checked; then renamed.

A server may ignore that only the rest was asked for (status 200: it starts anew) or find nothing left to send (416:
either all is here, or what is here is no part of the file).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fngd_bench.data import checksums
from fngd_bench.data.checksums import Checksum
from fngd_bench.data.progress import Display, Watch
from fngd_bench.errors import InputError

TIMEOUT = 30.0
"""Seconds that a server may be silent."""
CHUNK = 2**18
"""Bytes read at a time."""


class Remote(NamedTuple):
    """A file on a data set's own site."""

    url: str
    checksum: Checksum


def download(remote: Remote, target: Path, display: Display) -> None:
    """Get a file, unless it is there and whole.

    Args:
        remote: Where it is, and its checksum.
        target: Where it goes; its folder exists.
        display: Shows the bytes on their way.

    Raises:
        InputError: If the server cannot be reached or refuses, the disk is full, or what came has another checksum.
    """
    algorithm = remote.checksum.algorithm
    if target.is_file() and checksums.digest(target, algorithm) == remote.checksum.value:
        return
    part = target.with_name(f"{target.name}.part")
    with display(target.name) as watch, _disk(part):
        _transfer(remote.url, part, watch)
        found = checksums.digest(part, algorithm)
        if found != remote.checksum.value:
            part.unlink()
        checksums.compare(remote.url, found, remote.checksum, "it was removed again: another fetch starts anew")
        part.replace(target)


def _transfer(url: str, part: Path, watch: Watch) -> None:
    """Bring the rest of a file here."""
    here = part.stat().st_size if part.exists() else 0
    answer = _ask(url, here)
    if answer is not None:
        with answer:
            _write(answer, url, part, here, watch)
    elif here != _size(url):
        part.unlink()
        _transfer(url, part, watch)


def _ask(url: str, start: int) -> HTTPResponse | None:
    """The answer to a request for a file from some byte on; None if there is nothing from there on."""
    headers = {"User-Agent": "fngd"} | ({"Range": f"bytes={start}-"} if start else {})
    with _network(url):
        try:
            answer: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)  # noqa: S310 - from our table
        except HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
                raise
            error.close()
            return None
    return answer


def _size(url: str) -> int | None:
    """Bytes of the whole file, if the server says."""
    answer = _ask(url, 0)
    if answer is None:
        return None
    with answer:
        return _length(answer)


def _length(answer: HTTPResponse) -> int | None:
    """Bytes that the answer holds, if the server says."""
    said = answer.headers.get("Content-Length", "")
    return int(said) if said.isdecimal() else None


def _write(answer: HTTPResponse, url: str, part: Path, here: int, watch: Watch) -> None:
    """Append what comes, or start anew if all comes; refuse an answer that ends early."""
    done = here if answer.status == HTTPStatus.PARTIAL_CONTENT else 0
    length = _length(answer)
    total = None if length is None else done + length
    with part.open("ab" if done else "wb") as file:
        for chunk in _chunks(answer, url):
            file.write(chunk)
            done += len(chunk)
            watch(done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done != total:
        raise InputError(f"{url} broke off after {done:,} of {total:,} bytes; {_GO_ON}")


def _chunks(answer: HTTPResponse, url: str) -> Iterator[bytes]:
    with _network(url):
        while chunk := answer.read(CHUNK):
            yield chunk


_GO_ON = "check the network and run the command again: it goes on from there"


@contextmanager
def _network(url: str) -> Iterator[None]:
    """Whatever a network can do wrong, in one line."""
    try:
        yield
    except HTTPError as error:
        error.close()
        said = f"{error.code} {error.reason}"
        raise InputError(f"{url}: the server answered {said}; see with a browser whether the file has moved") from error
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)  # urllib wraps what happened
        raise InputError(f"{url}: {getattr(cause, 'strerror', None) or cause}; {_GO_ON}") from error


@contextmanager
def _disk(part: Path) -> Iterator[None]:
    """Whatever a disk can do wrong, in one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {part}: {error.strerror or error}; make room or choose another folder with --data"
        ) from error
