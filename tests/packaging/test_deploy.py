"""The units in deploy/ are what systemd accepts, and leave the programs no more than they need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.source_tree import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EXPOSURE_MAX = 2.0
"""The exposure on systemd's scale from 0 to 10; below 2 it calls a service safe."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here"
)


def installed(unit: Path, directory: Path) -> Path:
    """The unit as on a machine on which Semel is installed where this Python is."""
    copy = directory / unit.name.replace("@.", "@1.")
    copy.write_text(unit.read_text().replace("/opt/semel/bin/python", sys.executable))
    return copy


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_no_fault(unit: Path, tmp_path: Path) -> None:
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed(unit, tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_programs_are_confined(unit: Path, tmp_path: Path) -> None:
    found = subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=true", "--json=short", "--no-pager"),
            *(f"--threshold={int(EXPOSURE_MAX * 10)}", str(installed(unit, tmp_path))),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    exposed = [each["json_field"] for each in json.loads(found.stdout) if each["set"] is False]
    assert found.returncode == 0, f"{found.stderr}: {exposed}"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_its_program_with_its_own_files(unit: Path) -> None:
    program = unit.stem.removesuffix("@").replace("-", ".")
    name = program.removeprefix("semel.")
    lines = unit.read_text().splitlines()
    [start] = [line for line in lines if line.startswith("ExecStart=")]
    assert f" -m {program} " in start
    assert f"--config /etc/semel/{name}-%i.toml" in start
    assert f"--data /var/lib/semel/{name}-%i" in start
    assert f"StateDirectory=semel/{name}-%i" in lines
    assert {"Type=notify", "NoNewPrivileges=true", "ProtectSystem=strict"} <= set(lines)
