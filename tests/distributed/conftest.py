import pytest
from processes import Processes


@pytest.fixture(scope="session")
def processes():
    """Four processes for all tests of this folder: starting them takes longer than what they do."""
    processes = Processes(4)
    yield processes
    processes.stop()
