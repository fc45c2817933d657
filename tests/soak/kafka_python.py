"""kafka-python's own integration tests, from its source distribution.

The distribution lacks what starts a broker for them (`test/service.py`) and marks `test` as a
package: both are put there. Kafka makes a topic when somebody writes to it; here topics are never
made by asking for them, so a plugin makes those that tests expect to come by themselves.

`KAFKA_VERSION` chooses what the tests ask for. It is the newest version of Kafka whose requests the
gateway's table has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.kit.maven import Missing
from tests.kit.verdicts import Outcome, Verdict
from tests.soak.kafka_suites import Judged

JUDGE: Final = f"kafka-python {version('kafka-python')}"
KAFKA_VERSION: Final = "2.3.0"
FILES: Final = ("consumer", "producer", "admin", "sasl", "ssl")
_SERVICE: Final = '''
class ExternalService:
    """A broker that runs already."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    def wait_for(self, pattern, timeout=None):
        return True


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("only the gateway that runs is tested")
'''
_TOPICS: Final = """
import os

import kafka
from kafka.errors import TopicAlreadyExistsError

_made = set()
_send = kafka.KafkaProducer.send


def send(self, topic, *args, **kwargs):
    if topic not in _made:
        _made.add(topic)
        admin = kafka.KafkaAdminClient(bootstrap_servers=os.environ["KAFKA_URI"].split("//")[1])
        try:
            admin.create_topics({topic: {"num_partitions": 4, "replication_factor": 1}})
        except TopicAlreadyExistsError:
            pass
        finally:
            admin.close()
    return _send(self, topic, *args, **kwargs)


kafka.KafkaProducer.send = send
"""


def run(judged: Judged) -> Iterator[Verdict]:
    """Runs them. Raises Missing."""
    source = _source(judged.place)
    (source / "test" / "__init__.py").touch()
    (source / "test" / "service.py").write_text(_SERVICE)
    (source / "judged_topics.py").write_text(_TOPICS)
    (source / "pytest.ini").write_text("[pytest]\n")
    report = judged.place / "report.xml"
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(source),  # nothing is run from there, but it must be a directory
        "KAFKA_URI": f"kafka://{judged.addresses[0]}",
    }
    command = [sys.executable, "-m", "pytest", "-p", "judged_topics", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-q", f"--junitxml={report}", "--tb=short"]
    command += ["-W", "ignore", "-o", "junit_family=xunit1"]
    if judged.only:
        command += ["-k", judged.only]
    files = [source / "test" / "integration" / f"test_{name}_integration.py" for name in FILES]
    subprocess.run(
        [*command, *map(str, files)], cwd=source, env=environment, check=False, timeout=3_600
    )
    if not report.exists():
        raise Missing(f"pytest wrote no report of {JUDGE}")
    yield from verdicts_of(report.read_text())


def verdicts_of(report: str) -> Iterator[Verdict]:
    """The verdicts in a report of pytest in JUnit's format."""
    for case in ET.fromstring(report).iter("testcase"):
        file = (case.get("classname") or "").rpartition(".")[2].removesuffix("_integration")
        name = f"{file.removeprefix('test_')}: {case.get('name')}"
        outcome, said = Outcome.PASSED, ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = Outcome.FAILED
            elif child.tag == "skipped" and outcome is Outcome.PASSED:
                outcome = Outcome.LEFT_OUT
            else:
                continue
            said = ((child.get("message") or "").splitlines() or [""])[0]
        yield Verdict(JUDGE, name, outcome, said)


def _source(place: Path) -> Path:
    """Gets the source distribution, and returns its directory. Raises Missing."""
    wanted = f"kafka-python=={version('kafka-python')}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "-d", str(place / "sdist"), wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise Missing(f"pip cannot get the source of {wanted} from PyPI: {said}")
    [archive] = (place / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place / "source", filter="data")
    [directory] = (place / "source").iterdir()
    return directory
