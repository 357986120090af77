"""Made-up records on disk, read back as runs."""

import made_up
import pytest


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A folder of five methods, three seeds, eight epochs."""
    folder = tmp_path_factory.mktemp("comparison")
    made_up.write_comparison(folder)
    return folder


@pytest.fixture(scope="session")
def runs(comparison):
    return made_up.read_all(comparison)
