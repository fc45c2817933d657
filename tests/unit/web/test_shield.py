"""Names under which the console answers, and what its pages may load."""

from __future__ import annotations

import hashlib

import pytest

from semel.web.pages import STATIC
from semel.web.shield import POLICY, is_own

NAMES = frozenset({"semel.example"})


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7080",
        "127.0.0.1",
        "localhost:1",
        "LOCALHOST",
        "[::1]:7080",
        "10.0.0.7:80",
        "semel.example",
        "Semel.Example:443",
    ],
)
def test_it_answers(host: str) -> None:
    assert is_own(host, NAMES)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example:7080", "a:b:c", "[x]"]
)
def test_it_refuses(host: str) -> None:
    assert not is_own(host, NAMES)


def test_the_policy_allows_no_script_of_a_page_itself() -> None:
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY


def test_libraries_of_others_are_as_they_came() -> None:
    """Their digests stand in the page that names their licences."""
    vendor = STATIC / "vendor"
    told = (vendor / "README.md").read_text()
    files = [path for path in vendor.iterdir() if path.suffix in (".js", ".css")]
    assert len(files) == 3
    for path in files:
        assert f"| {path.name} |" in told
        assert hashlib.sha256(path.read_bytes()).hexdigest() in told
