"""Records logs of the state machine, with what this version computes of them: fixtures for later
versions.

`python -m tools.recorded_logs` writes `tests/fixtures/logs/VERSION/`, once, when VERSION is about
to be released; it refuses to write over what is there. A unit test
(`tests/unit/broker/state/test_recorded_logs.py`) has today's state machine apply the logs of every
version, and compares.

How it works. Small simulated clusters (`tests/world`) run under load and faults, with each kind of
feature. Their committed entries are the logs. Each is applied to an empty state, and the digests of
the state's canonical bytes are noted, at a quarter, half, three quarters and the end.

Format. `NAME.xz` has the frames of one broker group's log from index 1 on, one behind the other
(docs/formats/frame.md), compressed. `logs.json` has for each name `frames`, `level` (at the end),
`digests` (hex by index) and `records` (how many of each kind).

Not here: the worlds' plans and programs (`tests/world`).
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from semel.broker.state import State
from semel.protos.frames import RecordKind, check_frame, frame_length_at, iter_records
from semel.protos.v1 import control_pb2
from tests.world.folded import Folded
from tests.world.soak import run_seeds
from tools.source_tree import ROOT

LOGS: Final = ROOT / "tests" / "fixtures" / "logs"
INDEX: Final = "logs.json"
WORLDS: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("splits",),
    ("moves",),
    ("transactions",),
    ("delays",),
    ("ids",),
    ("compaction",),
    ("tiers",),
    ("memory",),
    ("upgrades",),
    ("deletions",),
    ("parting",),
    ("memory", "moves"),
    ("compaction", "moves"),
    ("ids", "transactions"),
    ("delays", "moves"),
    ("groups",),
    ("splits", "parting", "delays"),
)
"""Features beyond those of a plain world."""
SEEDS: Final = range(8)
"""Seeds of each. The first one is recorded, and others that have a kind of record which none before
has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLog:
    """The log of one broker group, and what a version made of it."""

    frames: list[bytes]
    level: int
    """Feature level at its end."""
    digests: Mapping[int, str]
    """Digests of the state's canonical bytes, by the index of the last entry that was applied."""
    records: Mapping[str, int]
    """How many of each kind: `batch`, `control.fence`, …"""


def digests_of(frames: list[bytes]) -> tuple[dict[int, str], int]:
    """Applies a log with today's state machine. Returns the digests at four indexes, and the
    feature level at the end. Raises StateDiverged."""
    state, digests = State(), {}
    wanted = {max(1, len(frames) * quarter // 4) for quarter in (1, 2, 3, 4)}
    for frame in frames:
        state.apply_frame(frame)
        if state.applied_index in wanted:
            digests[int(state.applied_index)] = state.digest().hex()
    return digests, state.feature_level


def records_of(frames: list[bytes]) -> Counter[str]:
    """How many records of each kind a log has."""
    found: Counter[str] = Counter()
    for frame in frames:
        for _, kind, payload in iter_records(frame):
            name = RecordKind(kind).name.lower()
            if kind is RecordKind.CONTROL:
                record = control_pb2.ControlRecord.FromString(bytes(payload))
                name = f"control.{record.WhichOneof('record')}"
            found[name] += 1
    return found


def record(parts: tuple[str, ...], seed: int) -> dict[int, RecordedLog]:
    """Runs a world and returns the logs of its broker groups, by their numbers."""
    frames: dict[int, list[bytes]] = {}
    fold = Folded.fold

    def recording(self: Folded, index: int, frame: bytes) -> None:
        log = frames.setdefault(int(self.group_id), [])
        assert index == len(log) + 1, "each committed entry is folded once"
        log.append(bytes(frame))
        fold(self, index, frame)

    with patch.object(Folded, "fold", recording):
        _, failures, _ = run_seeds([seed], more=parts)
    assert not failures, failures[0][1]
    logs = {}
    for group, log in frames.items():
        digests, level = digests_of(log)
        logs[group] = RecordedLog(
            frames=log, level=level, digests=digests, records=dict(sorted(records_of(log).items()))
        )
    return logs


def write(directory: Path, logs: Mapping[str, RecordedLog]) -> None:
    """Writes logs as the module's docstring says."""
    directory.mkdir(parents=True)
    index: dict[str, Any] = {}
    for name, log in logs.items():
        packed = lzma.compress(b"".join(log.frames), preset=9 | lzma.PRESET_EXTREME)
        (directory / f"{name}.xz").write_bytes(packed)
        index[name] = {
            "frames": len(log.frames),
            "level": log.level,
            "digests": {str(at): digest for at, digest in log.digests.items()},
            "records": log.records,
        }
    (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def read(directory: Path) -> Iterator[tuple[str, RecordedLog]]:
    """The logs that a version left, by their names. Raises CorruptFrame."""
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    for name, facts in index.items():
        data = lzma.decompress((directory / f"{name}.xz").read_bytes())
        frames, at = [], 0
        while at < len(data):
            frame = data[at : at + frame_length_at(data, at)]
            check_frame(frame)
            frames.append(frame)
            at += len(frame)
        assert len(frames) == facts["frames"], f"{name} is cut"
        yield (
            name,
            RecordedLog(
                frames=frames,
                level=facts["level"],
                digests={int(at): digest for at, digest in facts["digests"].items()},
                records=facts["records"],
            ),
        )


def choose() -> dict[str, RecordedLog]:
    """Runs the worlds and returns the logs to keep, by their names."""
    chosen: dict[str, RecordedLog] = {}
    known: set[str] = set()
    for parts in WORLDS:
        for seed in SEEDS:
            for group, log in record(parts, seed).items():
                if seed == SEEDS.start or log.records.keys() - known:
                    chosen[f"{'+'.join(parts) or 'plain'}-{seed}-{group}"] = log
                    known |= log.records.keys()
    return chosen


def main() -> int:
    """Runs the tool; returns the exit status."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0]).parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    directory = LOGS / version
    if directory.exists():
        print(
            f"error: {directory} is there: what a release computed does not change", file=sys.stderr
        )
        return 1
    logs = choose()
    write(directory, logs)
    total = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{len(logs)} logs, {total:,} bytes, in {directory.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
