"""Apache Flink in a Java process of its own, told by SQL what to do.

How it works. Flink's jars and those of its Kafka connector come from Maven Central, pinned
(`jars/flink.txt`). py4j, which is PySpark's, starts Java and calls Flink's TableEnvironment in it,
so that nothing has to be compiled. A job runs on Flink's own small cluster in that process, and
keeps its checkpoints in a directory: when the process is killed, another one goes on from the
newest one that is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from semel.client.java import find_java
from tests.kit.maven import class_path

_OPENED: Final = (
    *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text"),
    *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("java.util.concurrent.locks", "sun.nio.ch"),
)
"""Packages of Java that Flink's own scripts open for it, too."""
_OPTIONS: Final = (
    *("-Xmx768m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class JobFailed(Exception):
    """A job ended otherwise than by finishing; the message is Flink's."""


class Flink:
    """A process of it, with one environment for SQL."""

    def __init__(self, log: Path, settings: Mapping[str, str]) -> None:
        """Starts it; what it says goes to `log`. Raises Missing and JavaMissing."""
        options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        java = find_java(purpose="Flink")
        jars = class_path("flink")
        # py4j has threads that write to it as long as Java lives.
        self._said = log.open("a", buffering=1)
        port, self._process = launch_gateway(
            classpath=jars,
            javaopts=[*_OPTIONS, *options],
            java_path=str(java),
            die_on_exit=True,
            redirect_stdout=self._said,
            redirect_stderr=self._said,
            return_proc=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        flink = self._gateway.jvm.org.apache.flink
        configuration = flink.configuration.Configuration()
        for name, value in {"execution.target": "local", **settings}.items():
            configuration.setString(name, value)
        table = flink.table.api
        environment = table.EnvironmentSettings.newInstance().inStreamingMode()
        self._environment = table.TableEnvironment.create(
            environment.withConfiguration(configuration).build()
        )

    def table(self, name: str, columns: str, options: Mapping[str, str]) -> None:
        """Tells it of a table."""
        said = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        self._environment.executeSql(f"CREATE TABLE {name} ({columns}) WITH ({said})")

    def insert(self, query: str) -> Job:
        """Starts the job of an INSERT. Raises JobFailed if it cannot begin."""
        try:
            return Job(self._gateway.jvm, self._environment.executeSql(query))
        except Py4JJavaError as error:
            raise JobFailed(_root(error.java_exception)) from None

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._process.kill()
        self._process.wait(30)
        self._gateway.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


class Job:
    """A job that runs."""

    def __init__(self, jvm: Any, result: Any) -> None:
        self._result = result
        self._seconds = jvm.java.util.concurrent.TimeUnit.SECONDS

    def finished(self, wait_s: int) -> bool:
        """Waits for its end, and returns whether that came. Raises JobFailed."""
        try:
            getattr(self._result, "await")(wait_s, self._seconds)
        except Py4JJavaError as error:
            thrown = error.java_exception
            if thrown.getClass().getSimpleName() == "TimeoutException":
                return False
            raise JobFailed(_root(thrown)) from None
        return True


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint below a directory that is whole, of any job."""
    whole = [file.parent for file in directory.glob("*/chk-*/_metadata")]
    return max(whole, key=lambda each: each.stat().st_mtime_ns, default=None)


def _root(thrown: Any) -> str:
    """What the first cause of an exception says, in one line."""
    while (cause := thrown.getCause()) is not None:
        thrown = cause
    return " ".join(str(thrown.toString()).split())[:300]
