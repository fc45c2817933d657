"""Another broker's figures: runs its script, reads its lines, and removes all traces of it.

How it works. A peer's script starts its own nodes, runs the workloads that `--only` names and
prints one JSON object per line and workload. One run of it is one round. It gets a session of its
own and a directory for temporary data that is removed with the run. While the script runs, this
process adopts its orphans, so that nodes in sessions of their own are found and ended too: first
with SIGTERM to the script, which ends its nodes itself, then with SIGKILL to whatever is left.

Invariants.
1. A line is a JSON object with `peer` and `workload` and figures that are finite and not negative,
   or the run has failed: a peer's output is never accepted in part.
2. However `Peer.run` is left, no process of the peer runs afterwards and its data is gone.

Format of a line: {"peer": NAME, "workload": W, LABEL: TEXT, …, FIGURE: NUMBER, …}. A nested object
gives figures with its name in front. The labels make the variant, "python, fsync". Several lines of
one variant are one figure, their median.

Not here: Semel's own workloads (`workloads.py`), which figures are compared (`goals.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import Cell, Figures
from benchmarks.goals import FLOOR, SEMEL

LINE_BYTES_MAX = 1 << 20
GRACE_S = 20.0
"""How long a peer's script may take to end its nodes after SIGTERM."""
LOOK_S = 0.5
"""Interval between two checks for Ctrl-C. A signal that arrives after Python's last check and
before the system call wakes nothing: a call that waits for minutes would not notice it."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_LABELS = (
    *("client", "durability", "linger_ms", "streams", "ids", "signal"),
    *("client_on_leader", "sink"),
)
_ORDINARY = {"durability": "default"}
"""Values of labels that are not shown in the variant."""
_IGNORED = ("runs_msg_s", "runs_rows_s", "errors", "was_active_controller", "sent", "acked", "n")
# The launcher asks for SIGTERM when this process ends, then becomes the script with the same pid.
_LAUNCHER = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


class PeerError(Exception):
    """A peer gave no figures; the message of one line says which, and why."""


class Peer:
    """A script, with the arguments of one round."""

    def __init__(
        self,
        command: str,
        *,
        workloads: Sequence[str],
        scale: float,
        durability: str,
        silence_s: float,
        data: Path,
    ) -> None:
        """Raises PeerError when there is no such command or script."""
        self.silence_s = silence_s
        self._data = data
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise PeerError(f"--peer {command!r} is no command: {error}") from None
        if not words or shutil.which(words[0]) is None:
            raise PeerError(f"--peer {command!r}: there is no such program")
        scripts = [word for word in words[1:] if word.endswith(".py")]
        for script in scripts:
            if not Path(script).is_file():
                raise PeerError(f"--peer {command!r}: there is no file {script}")
        self.name = Path((scripts or words)[0]).stem
        """Name of the peer until its first line gives it."""
        self._command = [*words, "--only", ",".join(workloads), "--runs", "1"]
        self._command += ["--scale", f"{scale:g}", "--durability", durability]

    def run(self) -> Figures:
        """Runs one round. Raises PeerError."""
        with (
            tempfile.TemporaryDirectory(
                prefix="peer-data-", dir=self._data, ignore_cleanup_errors=True
            ) as place,
            tempfile.TemporaryFile() as errors,
        ):
            try:
                with _adopting(), _started(self._command, place, errors) as process:
                    return collect(self._lines(process))
            except PeerError as error:
                raise PeerError(f"{self.name}: {error}{_last_line(errors)}") from None

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """The script's lines as they arrive, until it has ended successfully."""
        assert process.stdout is not None
        pending = b""
        heard = time.monotonic()
        while True:
            patience = heard + self.silence_s - time.monotonic()
            if patience <= 0:
                raise PeerError(f"said nothing for {self.silence_s:g} s and was ended")
            ready, _, _ = select.select([process.stdout], [], [], min(patience, LOOK_S))
            if not ready:
                continue
            heard = time.monotonic()
            data = os.read(process.stdout.fileno(), 1 << 16)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if len(pending) > LINE_BYTES_MAX:
                raise PeerError(f"printed a line of more than {LINE_BYTES_MAX >> 20} MiB")
            if not data:
                break
        yield pending.decode(errors="replace")
        try:
            status = process.wait(self.silence_s)
        except subprocess.TimeoutExpired:
            raise PeerError("closed its output and did not end; it was ended") from None
        if status:
            how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
            raise PeerError(f"ended with {how}")


def collect(lines: Iterator[str]) -> Figures:
    """The figures of all lines of one run. Raises PeerError for an invalid line."""
    found: dict[tuple[Cell, str], list[float]] = {}
    for line in lines:
        if line.strip():
            cell, figures = parse(line)
            for metric, value in figures.items():
                found.setdefault((cell, metric), []).append(value)
    if not found:
        raise PeerError("printed no figure")
    result: Figures = {}
    for (cell, metric), values in found.items():
        result.setdefault(cell, {})[metric] = statistics.median(values)
    return result


def parse(line: str) -> tuple[Cell, dict[str, float]]:
    """The cell and the figures of one line. Raises PeerError."""
    shown = line.strip()[:80]
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise PeerError(f"printed {shown!r}, which is no JSON object") from None
    if not isinstance(fields, dict):
        fields = {}
    system, workload = fields.get("peer"), fields.get("workload")
    if not (isinstance(system, str) and isinstance(workload, str) and system and workload):
        raise PeerError(f"printed {shown!r}, which has no `peer` or no `workload`")
    if system in (SEMEL, FLOOR) or ":" in system:
        raise PeerError(f"printed {shown!r}, and no other broker is called {system!r}")
    figures: dict[str, float] = {}
    for key, value in fields.items():
        if key not in ("peer", "workload", *_LABELS, *_IGNORED):
            figures |= _flat(key, value, shown)
    if not figures:
        raise PeerError(f"printed {shown!r}, which has no figure")
    return Cell(system=system, workload=workload, variant=_variant(fields)), figures


def _flat(key: str, value: Any, shown: str) -> dict[str, float]:
    """A field as figures: nested names joined; a list of numbers as its sum and its elements."""
    if isinstance(value, dict):
        found: dict[str, float] = {}
        for name, part in value.items():
            if name not in _IGNORED:
                found |= _flat(f"{key}_{name}", part, shown)
        return found
    if isinstance(value, list) and value:
        each = [_flat(f"{key}_node_{place}", part, shown) for place, part in enumerate(value, 1)]
        parts = {name: part for one in each for name, part in one.items()}
        return {key: sum(parts.values()), **parts}
    if value is None:
        return {}
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PeerError(f"printed {shown!r}: {key} is no number")
    if not math.isfinite(value) or value < 0:
        raise PeerError(f"printed {shown!r}: {key} is {value}, which no measurement gives")
    return {key: float(value)}


def _variant(fields: Mapping[str, Any]) -> str:
    """The variant's text from the labels."""
    words = []
    for label in _LABELS:
        value = fields.get(label)
        if value is None or value == _ORDINARY.get(label):
            continue
        words.append(value if isinstance(value, str) else f"{label} {json.dumps(value)}")
    return ", ".join(words)


@contextlib.contextmanager
def _started(command: Sequence[str], place: str, errors: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the script; ends it with all its processes afterwards."""
    before = set(psutil.Process().children(recursive=True))
    environment = {"PEERS_CACHE": str(Path("~/.cache/peers").expanduser()), **os.environ}
    environment["TMPDIR"] = place
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _LAUNCHER, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process, before)
        assert process.stdout is not None
        process.stdout.close()


def _end(process: subprocess.Popen[bytes], before: set[psutil.Process]) -> None:
    """Ends the script and all processes that it started."""
    try:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:  # also when somebody is impatient and presses Ctrl-C again
        while left := set(psutil.Process().children(recursive=True)) - before:
            for each in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            for each in left:  # nobody else would take the exit status of an adopted one
                with contextlib.suppress(psutil.Error, ChildProcessError):
                    if each.pid != process.pid:
                        each.wait(1)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Makes orphans of children become children of this process in the meantime."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _last_line(errors: Any) -> str:
    """The last line that it wrote to stderr, for an error message."""
    errors.seek(0)
    text: str = errors.read()[-4_096:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"; its last words: {lines[-1][:300]}" if lines else ""
