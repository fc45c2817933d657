"""Pinned jars: lists of them, and what is said where they are missing or are others."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.kit import maven

LISTS = sorted(path.stem for path in maven.LISTS.glob("*.txt"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def fake_maven(place: Path, script: str) -> None:
    program = place / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("name", LISTS)
def test_each_list_pins_each_jar_once(name: str) -> None:
    found = maven.listed(name)
    assert len(found) == len((maven.LISTS / f"{name}.txt").read_text().splitlines())
    for coordinates, digest in found.items():
        assert re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+", coordinates), coordinates
        assert re.fullmatch(r"[0-9a-f]{64}", digest), coordinates


def test_without_maven_one_line_says_so() -> None:
    with pytest.raises(maven.Missing, match=r"there is no mvn on the PATH"):
        maven.jars("kafka")


def test_what_maven_cannot_get_is_said_in_one_line(cache: Path) -> None:
    fake_maven(cache, "echo '[ERROR] no such host'; exit 1")
    with pytest.raises(maven.Missing, match=r"from Maven Central: no such host$"):
        maven.jars("kafka")


def test_jars_are_gotten_once_and_another_jar_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = cache / "lists"
    lists.mkdir()
    digest = hashlib.sha256(b"jar\n").hexdigest()
    (lists / "some.txt").write_text(f"org.example:thing:1.0 {digest}\n")
    monkeypatch.setattr(maven, "LISTS", lists)
    # The last argument is -DoutputDirectory=PLACE.
    fake_maven(
        cache,
        'for last; do :; done; place="${last#*=}"\n'
        '/bin/mkdir -p "$place" && echo jar >"$place/thing-1.0.jar"',
    )
    [jar] = maven.jars("some")
    (cache / "bin" / "mvn").unlink()
    assert maven.jars("some") == [jar]
    jar.write_text("another")
    with pytest.raises(maven.Missing, match=r"thing-1\.0\.jar is not the jar that is pinned"):
        maven.jars("some")
