"""For all tests: Hypothesis without deadlines by the wall clock, and a ZooKeeper to share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.zookeeper import Server, running_server

os.environ["SEMEL_ROUTES_DIRECTORY"] = ""  # nothing of a test stays in the user's files

settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real ZooKeeper for all tests: each takes a chroot of its own and kills nothing."""
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
