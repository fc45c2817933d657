"""The start script that drops one flag of Spark's."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from semel.client.java import JavaMissing
from semel.spark_connector import java
from tests.kit.java import env, fake_java

__all__ = ["env"]  # the fixture


def test_the_start_script_drops_the_flag_and_nothing_else(
    tmp_path: Path, env: dict[str, str]
) -> None:
    program = fake_java(tmp_path / "a jdk", "17.0.1")
    env["JAVA_HOME"] = str(tmp_path / "a jdk")
    home = java.java_home(env)
    given = ["-cp", "a b:*", "", "--add-modules=jdk.incubator.vector", "$x", "it's", "-Dq=1 2"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True)
    given.remove("--add-modules=jdk.incubator.vector")
    assert done.stdout.splitlines() == [f"[{each}]" for each in given]
    assert program.exists()
    assert home.parent == tmp_path / "home" / ".cache" / "semel"
    assert java.java_home(env) == home


def test_a_damaged_start_script_is_repaired(tmp_path: Path, env: dict[str, str]) -> None:
    fake_java(tmp_path / "jdk", "17.0.1")
    env["JAVA_HOME"] = str(tmp_path / "jdk")
    script = java.java_home(env) / "bin" / "java"
    whole = script.read_bytes()
    script.write_bytes(whole[:20])
    java.java_home(env)
    assert script.read_bytes() == whole
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    assert [each.name for each in script.parent.iterdir()] == ["java"]


def test_many_processes_may_make_it_at_once(tmp_path: Path, env: dict[str, str]) -> None:
    fake_java(tmp_path / "jdk", "17.0.1")
    env["JAVA_HOME"] = str(tmp_path / "jdk")
    homes: list[Path] = []
    threads = [threading.Thread(target=lambda: homes.append(java.java_home(env))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(homes) == 8
    assert len(set(homes)) == 1


def test_a_directory_that_others_may_write_is_not_used(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "jdk", "17.0.1")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(scratch))
    env["JAVA_HOME"] = str(tmp_path / "jdk")
    cache = tmp_path / "home" / ".cache" / "semel"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    own = scratch / f"semel-{os.getuid()}"
    assert java.java_home(env).parent == own
    own.chmod(0o777)
    with pytest.raises(JavaMissing, match="not this user's own"):
        java.java_home(env)


def test_what_killed_sessions_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    def scratch(name: str, age_seconds: float) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        (directory / "lock").touch()
        then = time.time() - age_seconds
        os.utime(directory, (then, then))
        return directory

    killed = scratch("semel-spark-killed", 1_000)
    young = scratch("semel-spark-young", 10)
    other = scratch("semel-other", 1_000)
    unknown = scratch("semel-spark-without-lock", 1_000)
    (unknown / "lock").unlink()
    os.utime(unknown, (1, 1))
    living = scratch("semel-spark-living", 1_000)
    # Another open file of the same lock is another owner, also within one process.
    held = java._lock(living)
    assert held is not None
    java._sweep(tmp_path)
    assert not killed.exists()
    assert all(each.exists() for each in (young, other, unknown, living))
    os.close(held)
    java._sweep(tmp_path)
    assert not living.exists()


@pytest.mark.parametrize(("length", "fits"), [(20, True), (60, True), (61, False), (200, False)])
def test_a_socket_path_that_is_too_long_is_not_asked_for(length: int, fits: bool) -> None:
    assert java.fits_a_socket(Path("/" + (length - 1) * "d")) == fits
