"""A real HDFS in one process, for the soak of the tier: a name node with one data node.

How it works. It is Hadoop's own mini cluster, out of Maven's repository: Maven fetches its jars
once into the folder of Semel's cache, the rest of Hadoop comes with pyspark, and Java as for Spark.
The process writes its port to a file, and keeps its data in a folder that it is given.

Not here: what is done with it (`tests/soak/hdfs.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from semel.client.java import find_java
from tests.kit.waiting import until

JARS: Final = (
    "org.apache.hadoop:hadoop-client-minicluster:{hadoop}",
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
    "org.junit.platform:junit-platform-commons:1.13.4",
    "org.opentest4j:opentest4j:1.3.0",
    "org.apiguardian:apiguardian-api:1.1.2",
)
_OF_SPARK: Final = ("hadoop-client-", "slf4j-api", "log4j-", "jcl-over", "commons-")
_FETCH_S: Final = 600
START_S: Final = 90.0


class Hdfs:
    """A mini cluster that runs."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.url = f"hdfs://127.0.0.1:{port}"
        """Without a path."""

    def pause(self) -> None:
        """From now on it answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def _spark_jars() -> list[Path]:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = (Path(spec.origin).parent / "jars").glob("*.jar")
    return sorted(jar for jar in jars if jar.name.startswith(_OF_SPARK))


def _fetched() -> list[Path]:
    """Hadoop's jars that pyspark has not; Maven fetches those that are not in the cache."""
    ours = _spark_jars()
    api = next(jar.stem for jar in ours if jar.stem.startswith("hadoop-client-api-"))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = home / "semel" / "hadoop"
    cache.mkdir(parents=True, exist_ok=True)
    found = []
    for jar in JARS:
        artifact = jar.format(hadoop=api.removeprefix("hadoop-client-api-"))
        _, name, version = artifact.split(":")
        file = cache / f"{name}-{version}.jar"
        if not file.exists():
            maven = shutil.which("mvn")
            if maven is None:
                raise FileNotFoundError(f"Maven (mvn) must be installed to fetch {artifact}")
            folder = cache / "fetching"
            options = (f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")
            command = [maven, "-q", "-B", "-Dstyle.color=never", "dependency:copy", *options]
            subprocess.run(command, check=True, timeout=_FETCH_S, cwd=cache)
            (folder / file.name).replace(file)
        found.append(file)
    return [*found, *ours]


@contextmanager
def running_hdfs(directory: Path) -> Iterator[Hdfs]:
    """Starts it in a folder and yields it once it answers."""
    directory.mkdir(parents=True, exist_ok=True)
    details = directory / "details.json"
    jars = _fetched()
    with (directory / "out").open("wb") as out:
        process = subprocess.Popen(
            [
                *(str(find_java(purpose="HDFS")), "-Xmx512m", "-cp", ":".join(map(str, jars))),
                "org.apache.hadoop.test.MiniDFSClusterManager",
                *("-format", "-datanodes", "1", "-nnport", "0", "-writeDetails", str(details)),
            ],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )

    def started() -> bool:
        if process.poll() is not None:
            raise AssertionError((directory / "out").read_text()[-4_000:])
        with suppress(FileNotFoundError, ValueError):
            return bool(json.loads(details.read_text())["namenode_port"])
        return False

    try:
        until(started, START_S, "HDFS")
        yield Hdfs(process, json.loads(details.read_text())["namenode_port"])
    finally:
        process.kill()
        process.wait()
