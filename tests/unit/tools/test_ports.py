"""Ports that tests choose beforehand: two who choose at once are given different ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import ports

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_another_process_is_given_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = set(ports.free_ports(5))
    assert len(mine) == 5
    few = sorted(mine)
    monkeypatch.setattr(ports, "PRIVATE_PORTS", few)
    assert ports.free_ports(5) == []
    program = (
        f"from tests.kit import ports; ports.PRIVATE_PORTS = {few}; print(ports.free_ports(5))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert other.stdout == "[]\n"


def test_a_port_that_nobody_took_is_given_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = ports.free_ports(1)
    monkeypatch.setattr(ports, "PRIVATE_PORTS", [port])
    assert ports.free_ports(1) == []
    monkeypatch.setattr(ports, "RESERVED_S", -1.0)
    assert ports.free_ports(1) == [port]
