"""`./run soak kombu`: Kombu's own integration tests on the transport and a real cluster.

Wheels of Kombu have no tests, its source distribution has: pip gets that of the version which is
installed, or `--source` names one that is unpacked. Left out is `BasePriority`: a log has one
order.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.kit.cluster import Cluster
from tests.kit.ports import free_ports

TESTS: Final = """
import os

import kombu
import pytest
import semel.contrib.kombu
from t.integration.common import (
    BaseExchangeTypes, BaseFailover, BaseMessage, BaseTimeToLive, BasicFunctionality
)

HERE, NOWHERE = os.environ["HERE"], os.environ["NOWHERE"]
OPTIONS = {"queues": 2}


@pytest.fixture
def connection():
    return kombu.Connection(HERE, transport_options=OPTIONS)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(NOWHERE, connect_timeout=1)


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"{NOWHERE};{HERE}", transport_options=OPTIONS, connect_timeout=10)


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestFailover(BaseFailover):
    pass


class TestMessage(BaseMessage):
    pass
"""


def main(arguments: list[str]) -> int:
    """Runs them; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="./run soak kombu", description=(__doc__ or "").partition(": ")[2]
    )
    parser.add_argument("--source", type=Path, help="an unpacked source distribution of Kombu")
    options, rest = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="semel-kombu-") as name:
        home = Path(name)
        source = options.source or _source(home)
        (home / "test_kombu.py").write_text(TESTS)
        with Cluster(home / "cluster") as cluster:
            environment = {
                **os.environ,
                "PYTHONPATH": str(source),
                "HERE": f"semel://{cluster.bootstrap}",
                "NOWHERE": f"semel://127.0.0.1:{free_ports(1)[0]}",
            }
            command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", name]
            command += ["-p", "no:cacheprovider", "-v", *rest, str(home / "test_kombu.py")]
            return subprocess.run(command, cwd=home, env=environment, check=False).returncode


def _source(home: Path) -> Path:
    """Gets the source distribution, and returns its directory."""
    wanted = f"kombu=={version('kombu')}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "kombu"]
    subprocess.run([*pip, "-d", str(home / "sdist"), wanted], check=True)
    [archive] = (home / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(home / "source", filter="data")
    [directory] = (home / "source").iterdir()
    return directory


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
