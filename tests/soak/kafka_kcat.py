"""kcat before the gateways: what its commands print is asserted."""

from __future__ import annotations

import functools
import json
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kit.maven import Missing
from tests.kit.verdicts import Verdict, verdict_of
from tests.soak.kafka_suites import Judged

JUDGE: Final = "kcat"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Kcat:
    """The program, and topics for its tests."""

    def __init__(self, program: str, judged: Judged) -> None:
        self._command = [program, "-b", judged.bootstrap]
        self._admin = AdminClient({"bootstrap.servers": judged.bootstrap})

    def topic(self, partitions: int) -> str:
        """A new topic."""
        name = f"kcat-{secrets.token_hex(4)}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def __call__(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr[-500:]}"
        return done.stdout


def metadata(kcat: Kcat) -> None:
    topic = kcat.topic(3)
    told = json.loads(kcat("-L", "-J", "-t", topic))
    assert len(told["brokers"]) == 2
    [found] = told["topics"]
    assert [each["partition"] for each in found["partitions"]] == [0, 1, 2]


def codecs(kcat: Kcat) -> None:
    for codec in CODECS:
        topic = kcat.topic(1)
        lines = [f"k{number}|{codec} {number} " + "x" * 100 for number in range(300)]
        kcat("-P", "-t", topic, "-K", "|", "-z", codec, given="\n".join(lines) + "\n")
        found = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-K", "|")
        assert found.splitlines() == lines, codec


def idempotence(kcat: Kcat) -> None:
    topic = kcat.topic(2)
    lines = [str(number) for number in range(2_000)]
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", given="\n".join(lines) + "\n")
    found = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q").split()
    assert sorted(found, key=int) == lines


def headers(kcat: Kcat) -> None:
    topic = kcat.topic(1)
    kcat("-P", "-t", topic, "-H", "one=1", "-H", "two=2", given="value\n")
    found = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%h %s\\n")
    assert found == "one=1,two=2 value\n"


def offsets(kcat: Kcat) -> None:
    topic = kcat.topic(1)
    kcat("-P", "-t", topic, given="a\nb\nc\n")
    assert "offset 3" in kcat("-Q", "-t", f"{topic}:0:-1")
    assert "offset 0" in kcat("-Q", "-t", f"{topic}:0:-2")
    assert kcat("-C", "-t", topic, "-o", "-1", "-e", "-q") == "c\n"
    assert kcat("-C", "-t", topic, "-o", "1", "-c", "1", "-q") == "b\n"


def group(kcat: Kcat) -> None:
    topic = kcat.topic(3)
    lines = sorted(str(number) for number in range(500))
    kcat("-P", "-t", topic, given="\n".join(lines) + "\n")
    options = ("-q", "-X", "auto.offset.reset=earliest", "-c", "500", "-G", topic, topic)
    assert sorted(kcat(*options).split()) == lines


TESTS: Final[tuple[Callable[[Kcat], None], ...]] = (
    *(metadata, codecs, idempotence),
    *(headers, offsets, group),
)


def run(judged: Judged) -> Iterator[Verdict]:
    """Runs them. Raises Missing."""
    program = shutil.which("kcat") or shutil.which("kafkacat")
    if program is None:
        raise Missing("there is no kcat on the PATH: install it (Debian: apt-get install kcat)")
    kcat = Kcat(program, judged)
    for test in TESTS:
        if judged.only in test.__name__:
            yield verdict_of(JUDGE, test.__name__, functools.partial(test, kcat))
