"""A broker node whose wall clock is wrong: `python … skewed_node.py CONTROL [-P SCRIPT] FLAGS`.

How it works. Before the node's code is loaded, the functions that read the wall clock are replaced
by ones that add what the control file says. The monotonic clock is the kernel's, as on a machine
whose time is set by hand. `skew_of` makes a node of a cluster run so from its next start on.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kit.cluster import Node


class Skew:
    """The test's end."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """The node's wall clock is off by so much from now on."""
        temporary = self._control.with_suffix(".new")
        temporary.write_text(str(round(seconds * 1e9)))
        temporary.rename(self._control)

    @property
    def bitten(self) -> bool:
        """The node has read the clock while it was wrong."""
        return _bites(self._control).exists()


def skew_of(node: Node) -> Skew:
    """Makes a node of a Cluster run on a clock that can be set, from its next start on."""
    control = node.data.with_suffix(".clock")
    at = node.command.index("-m" if "-m" in node.command else "-P")
    here = ["-P", str(Path(__file__).resolve()), str(control)]
    rest = node.command[at + 2 :] if node.command[at] == "-m" else node.command[at:]
    node.command[at:] = [*here, *rest]
    return Skew(control)


def _bites(control: Path) -> Path:
    return control.with_suffix(".clock-bites")


class _Clock:
    """The node's end: the kernel's clock and what the control file adds."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._time_ns = time.time_ns
        self._looked_ns = 0
        self._offset_ns = 0

    def time_ns(self) -> int:
        now = time.monotonic_ns()
        if now - self._looked_ns > 20_000_000:
            self._looked_ns = now
            with contextlib.suppress(OSError):  # no descriptor is left: as it was
                self._offset_ns = int(self._control.read_text())
                if self._offset_ns:
                    _bites(self._control).touch()
        return self._time_ns() + self._offset_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


def _main(control: str, arguments: list[str]) -> None:
    clock = _Clock(Path(control))
    time.time_ns = clock.time_ns
    time.time = clock.time
    if arguments[0] == "-P":
        sys.argv = arguments[1:]
        runpy.run_path(arguments[1], run_name="__main__")
    else:
        sys.argv = ["semel.broker", *arguments]
        runpy.run_module("semel.broker", run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
