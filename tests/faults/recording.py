"""What the observed processes wrote, as one history for each of the two checkers.

How it works. A line before an operation and a line after it have the same name; the later one
counts. Messages of a producer with source positions are sent again by its next life: these are one
message, sent when it was first sent and stored when it was first acknowledged.

Not here: writing the lines (`worker.py`, `prober.py`), the checks (`tests/checking`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checking.history import Delivered, EndRead, History, Outcome, Send
from tests.checking.linearizability import (
    Append,
    LockModel,
    NotLinearizable,
    Operation,
    Saw,
    check_early,
    check_offsets,
    linearize,
)
from tests.checking.raw_log import Fold
from tests.checking.stored import Queue
from tests.faults.prober import SESSION_MS


@dataclass(slots=True)
class Recording:
    """Everything that was seen in one run."""

    history: History
    operations: dict[Queue, list[Operation]] = field(default_factory=dict)
    """On the probers' group, by queue."""
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    """What nodes said about sequences that some node had applied when they were asked."""
    repeats: list[dict[str, Any]] = field(default_factory=list)
    """The answers to messages that were sent once more by another producer."""

    @classmethod
    def read(cls, directory: Path) -> Recording:
        """All files of lines in a directory. The torn last line of a killed process is left out."""
        plain: list[str] = []
        repeats: list[dict[str, Any]] = []
        sends: dict[tuple[str, int], Send] = {}
        asked: dict[tuple[str, int], dict[str, Any]] = {}
        for path in sorted(directory.glob("*.jsonl")):
            for line in _whole_lines(path):
                kind = line.split('"', 4)[3]
                if kind == "op":
                    raw = json.loads(line)
                    asked[raw["member"], raw["id"]] = raw
                elif kind == "repeat":
                    repeats.append(json.loads(line))
                elif kind == "send":
                    (send,) = History.from_lines([line]).notes
                    assert isinstance(send, Send)
                    _merge(sends, send)
                else:
                    plain.append(line)
        history = History.from_lines(plain)
        for send in sends.values():
            history.add(send)
        operations: dict[Queue, list[Operation]] = defaultdict(list)
        outcomes = []
        for raw in asked.values():
            queue: Queue = (raw["queue"][0], raw["queue"][1])
            if raw["what"] == "outcome":
                outcomes.append({**raw, "queue": queue})
                continue
            if raw["what"] == "end":
                history.add(
                    EndRead(
                        client=raw["member"],
                        queue=queue,
                        began_s=raw["began_s"],
                        ended_s=raw["ended_s"],
                        end_offset=raw["end"],
                    )
                )
                continue
            names = raw.keys() - {"kind", "id", "member", "queue", "what", "began_s", "ended_s"}
            until = {} if raw["ended_s"] is None else {"ended_s": raw["ended_s"]}
            operations[queue].append(
                Operation(
                    client=raw["member"],
                    what=raw["what"],
                    began_s=raw["began_s"],
                    fields={name: raw[name] for name in names},
                    **until,
                )
            )
        return cls(history, dict(operations), outcomes, repeats)

    def check_repeats(self) -> None:
        """A message that was sent again is a duplicate at the place of the first.

        Raises AssertionError, also if nothing was sent again.
        """
        stored = {(send.client, send.number): send for send in self.history.of(Send)}
        assert self.repeats, "no message was sent once more"
        for again in self.repeats:
            first = stored[again["client"], again["number"]]
            place = tuple(again["queue"]), again["offset"]
            assert again["duplicate"], f"{again} was stored a second time, after {first}"
            assert place == (first.queue, first.offset), f"{again} is not at the place of {first}"

    def check_order(self, folded: Fold) -> int:
        """The second checker over everything; how many operations it explained.

        Raises NotLinearizable.
        """
        by_digest = {send.digest: send for send in self.history.of(Send)}
        appends: dict[Queue, list[Append]] = defaultdict(list)
        for row in folded.rows:
            send = by_digest[row.digest]
            until = {"ended_s": send.ended_s} if send.outcome is Outcome.OK else {}
            appends[row.queue].append(Append(offset=row.offset, began_s=send.began_s, **until))
        saw: dict[Queue, list[Saw]] = defaultdict(list)
        for read in self.history.of(EndRead):
            saw[read.queue].append(
                Saw(end=read.end_offset, began_s=read.began_s, ended_s=read.ended_s)
            )
        for one in self.history.of(Delivered):
            saw[one.queue].append(
                Saw(end=one.offset + 1, began_s=one.at_s, ended_s=one.at_s, exact=False)
            )
        for queue in saw.keys() | appends.keys():
            check_offsets(appends[queue], saw[queue])
        self._check_outcomes(folded)
        for some in self.operations.values():
            linearize(LockModel(), some)
            check_early(some, SESSION_MS / 1000)
        sides: Iterable[Iterable[list[Any]]] = (
            appends.values(),
            saw.values(),
            self.operations.values(),
        )
        return sum(len(some) for side in sides for some in side) + len(self.outcomes)

    def _check_outcomes(self, folded: Fold) -> None:
        """What was applied somewhere is stored, and every node knows so or is no master."""
        rows = {(row.queue, row.producer_id, row.sequence): row for row in folded.rows}
        for said in self.outcomes:
            row = rows.get((said["queue"], said["producer_id"], said["sequence"]))
            stale = said["outcome"] == "OUTCOME_NOT_COMMITTED"
            if stale or (row is not None and said["offset"] not in (-1, row.offset)):
                raise NotLinearizable(f"{said} was answered, and the log holds {row}")


def _merge(sends: dict[tuple[str, int], Send], send: Send) -> None:
    key = (send.client, send.number)
    known = sends.get(key)
    if known is None:
        sends[key] = send
        return
    assert known.digest == send.digest, f"{key} names two messages"
    if known.outcome is Outcome.OK:
        return
    send.began_s = min(send.began_s, known.began_s)
    sends[key] = send


def _whole_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield line
