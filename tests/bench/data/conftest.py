"""Real files where there are any, and a web site on this machine."""

import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fngd_bench.data.sets import SETS


@pytest.fixture(scope="session")
def real():
    """`real(name)`: the folder that holds the files of a data set. Without them a test is skipped; in CI it fails."""

    def folder(name):
        place = os.environ.get("FNGD_DATA")
        missing = None if place is None else SETS[name].absent(Path(place))
        if place is None or missing is not None:
            why = "FNGD_DATA is not set" if place is None else f"there is no {missing}"
            end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            end(f"the real files of {name} are needed: {why}")
        return Path(place)

    return folder


@contextmanager
def silent(_name):
    yield lambda done, total: None


@pytest.fixture
def quiet():
    """A display that shows nothing."""
    return silent


class Site:
    """A web site whose manners can be chosen."""

    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.files = {}
        self.ranges = True  # whether it sends the rest of a file when asked to
        self.lengths = True  # whether it says how long a file is
        self.cut = None  # bytes after which it breaks off
        self.asked = []  # the ranges that were asked for


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        site = self.server.site
        wanted = self.headers["Range"]
        site.asked.append(wanted)
        if (content := site.files.get(self.path)) is None:
            self.send_error(404)
        elif wanted is None or not site.ranges:
            self.answer(200, content)
        elif (start := int(wanted.removeprefix("bytes=").removesuffix("-"))) >= len(content):
            self.send_error(416)
        else:
            self.answer(206, content[start:])

    def answer(self, status, content):
        site = self.server.site
        self.send_response(status)
        if site.lengths:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: site.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.site = Site(server)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.site
        server.shutdown()
        thread.join()
