"""The load of a run: observed processes, started, killed, frozen, and started again.

How it works. A `Crew` is one process of `worker.py`; each of its lives writes a file of its own. A
crew that is killed loses nothing of what it had seen; all die with the process that started them.
`Load` holds the crews of a run and tells from their files how it goes.

Not here: what a crew does (`worker.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.worker import Spec
from tests.kit.cluster import LAUNCHER

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True, kw_only=True)
class Crew:
    """One process of clients."""

    name: str
    spec: Spec
    directory: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """The first life, or the next one."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        self.spec = dataclasses.replace(
            self.spec,
            life=self.spec.life + 1,
            history=str(self.directory / f"{self.name}-{self.spec.life + 1}.jsonl"),
        )
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-S", "-E", "-c", LAUNCHER),
                    *("-m", "tests.faults.worker", json.dumps(asdict(self.spec))),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits until it has gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def wait_started(self, timeout: float = 30.0) -> None:
        """Waits until it heeds signals."""
        deadline = time.monotonic() + timeout
        while not Path(self.spec.history).exists():
            assert time.monotonic() < deadline, f"{self.name} does not start{self.tail()}"
            time.sleep(0.01)

    def wait_end(self, timeout: float) -> None:
        """After a SIGTERM: waits for its end in good order. Raises AssertionError if it hangs."""
        assert self.process is not None
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.name} did not end within {timeout} s{self.tail()}"
            ) from None
        assert status == 0, f"{self.name} ended with status {status}{self.tail()}"

    def tail(self) -> str:
        """The end of what it wrote to its log."""
        text = (self.directory / f"{self.name}.log").read_text(errors="replace")
        return f"\n…{text[-1500:]}" if text else ""


class Load:
    """The crews of one run. Ends them all with the `with` block."""

    def __init__(self, directory: Path, crews: dict[str, Spec]) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.crews = {
            name: Crew(name=name, spec=spec, directory=directory) for name, spec in crews.items()
        }

    def __enter__(self) -> Load:
        for crew in self.crews.values():
            crew.start()
        return self

    def __exit__(self, *_: object) -> None:
        for crew in self.crews.values():
            if crew.process is not None and crew.process.poll() is None:
                crew.kill()

    def stop(self, timeout: float = 90.0) -> None:
        """Ends all crews in good order."""
        deadline = time.monotonic() + timeout
        for crew in self.crews.values():
            crew.wait_started()
            crew.signal(signal.SIGTERM)
        for crew in self.crews.values():
            crew.wait_end(max(1.0, deadline - time.monotonic()))

    def wait_acknowledged(self, since: float, count: int, timeout: float) -> float:
        """Waits until `count` messages that were sent after `since` are stored.

        Returns how long after `since` the first of them was. Raises AssertionError.
        """
        deadline = time.monotonic() + timeout
        followed = Followed(self.directory)
        first: float | None = None
        found = 0
        while True:
            for raw in followed.lines():
                if raw.get("outcome") == "ok" and raw["began_s"] >= since:
                    found += 1
                    first = min(first or raw["ended_s"], raw["ended_s"])
            if found >= count and first is not None:
                return first - since
            assert time.monotonic() < deadline, (
                f"only {found} of {count} messages were acknowledged within {timeout} s"
                + "".join(crew.tail() for crew in self.crews.values())
            )
            time.sleep(0.02)


class Followed:
    """New lines of sends in all files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def lines(self) -> list[dict[str, Any]]:
        """Those that came since the last call."""
        found = []
        for path in self._directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in data[:whole].splitlines():
                if line.startswith(b'{"kind": "send"'):
                    found.append(json.loads(line))
        return found
