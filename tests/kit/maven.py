"""Jars from Maven Central that the judges in Java need: pinned, checked, and kept in a cache.

How it works. A list in `jars/` names every jar by its coordinates and SHA-256, those that others
need as well, so that nothing is resolved but what stands there. Maven gets them once, into a
directory of the user's cache whose name is a digest of the list. They are compared with the list
whenever they are used.

Format of a list: a line `group:artifact:version sha256` for each jar.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

LISTS: Final = Path(__file__).with_name("jars")
_POM: Final = """<project>
<modelVersion>4.0.0</modelVersion>
<groupId>judges</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = """
<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency>"""


class Missing(Exception):
    """The machine lacks what a judge needs; the message of one line says what, and what to do."""


def listed(name: str) -> dict[str, str]:
    """The SHA-256 of each jar of a list, by its coordinates."""
    lines = (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in lines]
    return dict(pairs)


def jars(name: str) -> list[Path]:
    """The jars of a list, gotten if they are not there yet. Raises Missing."""
    wanted = listed(name)
    digest = hashlib.sha256("\n".join(f"{key} {wanted[key]}" for key in sorted(wanted)).encode())
    place = _cache() / f"{name}-{digest.hexdigest()[:16]}"
    if not place.is_dir():
        _get(name, list(wanted), place)
    return [_checked(place, coordinates, digest) for coordinates, digest in wanted.items()]


def class_path(name: str) -> str:
    """The same as Java's option -cp takes it. Raises Missing."""
    return os.pathsep.join(map(str, jars(name)))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "semel" / "jars"


def _get(name: str, coordinates: list[str], place: Path) -> None:
    """Makes the directory, whole or not at all: two processes may do so at once."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(
            "jars from Maven Central are gotten with Maven, and there is no mvn on the PATH:"
            " install it (Debian: apt-get install maven)"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{name}-") as scratch:
        dependencies = "".join(
            _DEPENDENCY.format(*map(escape, each.split(":"))) for each in coordinates
        )
        pom = Path(scratch, "pom.xml")
        pom.write_text(_POM.format(name=name, dependencies=dependencies), encoding="utf-8")
        library = Path(scratch, "lib")
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={library}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            why = said[0].removeprefix("[ERROR] ") if said else f"exit status {done.returncode}"
            raise Missing(f"Maven cannot get the jars of {name} from Maven Central: {why}")
        try:
            library.rename(place)
        except OSError:
            if not place.is_dir():
                raise


def _checked(place: Path, coordinates: str, digest: str) -> Path:
    _, artifact, version = coordinates.split(":")
    jar = place / f"{artifact}-{version}.jar"
    try:
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
    except FileNotFoundError:
        found = "no file"
    if found != digest:
        raise Missing(
            f"{jar} is not the jar that is pinned ({found}): remove {place}, and it is gotten anew"
        )
    return jar
