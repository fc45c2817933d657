"""Fixtures that start real clusters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.kit.loading import staged
from tools.demo.stage import Stage


@pytest.fixture(scope="session", autouse=True)
def programs_are_forked(forked_programs: None) -> None:
    """Hundreds of nodes are started here; `semel up` starts its own as ever."""


@pytest.fixture(scope="module", autouse=True)
def spark_leaves_no_client() -> Iterator[None]:
    """Tests that call the data source in this process leave its shared clients connected."""
    yield
    connections = sys.modules.get("semel.spark_connector.connections")
    if connections is not None:
        connections.discard_all()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers and a controller of this test's own."""
    with Cluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Where loaders and other actors of this test run."""
    with staged(tmp_path / "stage") as built:
        yield built


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    """Three brokers and a controller for all tests of a module, which must not kill any of it."""
    with Cluster(module_path / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def client(shared_cluster: Cluster) -> Iterator[Client]:
    """Connected to the module's cluster; who needs one of the test's own has a fixture there."""
    with connect(shared_cluster.bootstrap) as connected:
        yield connected
