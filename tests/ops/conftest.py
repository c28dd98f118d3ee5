"""One recorded log for all tests of the replay, and a way to call its commands."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops.replay.__main__ import main
from tests.ops.driver import Driver, conversations, play, policy


@pytest.fixture(scope="session")
def recorded() -> Driver:
    """Return a driver after 200 requests at a small capacity, with a disk tier."""
    driver = Driver(policy(capacity_bytes=1_000_000, write_policy="behind", disk_capacity_bytes=1_500_000))
    play(driver, conversations(5, 200))
    return driver


@pytest.fixture(scope="session")
def data_dir(recorded: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with that log. Tests don't change it."""
    return recorded.write_log(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def replay() -> Callable[..., Result]:
    """Return a function that runs mlxcel-replay with arguments."""

    def call(*args: object) -> Result:
        return CliRunner().invoke(main, [str(arg) for arg in args], prog_name="mlxcel-replay")

    return call
