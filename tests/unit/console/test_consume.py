"""What `semel consume --group` commits when its output fails: exactly what was written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from semel.console import consume
from semel.protos.errors import LockLost
from semel.protos.ids import QueueId, QueueKey, TopicId

QUEUES = [QueueKey(TopicId(1), QueueId(number)) for number in range(2)]


def message(number: int) -> Any:
    """Ten bytes with its newline; even numbers are in queue 0, odd ones in queue 1."""
    rows = SimpleNamespace(queue=QUEUES[number % 2])
    return SimpleNamespace(value=b"%09d" % number, rows=rows, number=number)


class FakeConsumer:
    """Gives out lists of messages, then waits for Ctrl-C; notes what is committed."""

    group = "g"

    def __init__(self, *lists: list[Any]) -> None:
        self._lists = list(lists)
        self._given: list[Any] = []
        self.committed: set[int] = set()
        self.refuses = False

    def poll(self, wanted: int, timeout: float) -> list[Any]:
        if not self._lists:
            raise KeyboardInterrupt
        found = self._lists.pop(0)
        found = found[:wanted] if len(found) > wanted else found
        self._given += list(found)
        return found

    def commit(self, message: Any = None) -> None:
        if self.refuses:
            raise LockLost("another member has it")
        self.committed |= {
            each.number
            for each in self._given
            if message is None
            or (each.rows.queue == message.rows.queue and each.number <= message.number)
        }


class FullOutput:
    """Stands for `os`: takes so many bytes in pieces of 7, then fails."""

    def __init__(self, room: int, failure: BaseException) -> None:
        self.taken = b""
        self._room = room
        self._failure = failure

    def write(self, file: int, data: memoryview) -> int:
        piece = bytes(data[: min(7, self._room - len(self.taken))])
        if not piece:
            raise self._failure
        self.taken += piece
        return len(piece)


def run(consumer: FakeConsumer, limit: int | None = None) -> None:
    @contextmanager
    def join(group: str, topics: list[str], auto_offset_reset: str) -> Iterator[FakeConsumer]:
        yield consumer

    out = consume._Output(lambda each: each.value + b"\n")
    client: Any = SimpleNamespace(consumer=join)
    consume._consume(client, "t", "g", "earliest", limit, False, out)


@pytest.mark.parametrize("room", [0, 9, 10, 65, 105, 199])
@pytest.mark.parametrize(
    "failure",
    [BrokenPipeError(), OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()],
    ids=["closed", "full", "interrupted"],
)
def test_a_write_that_fails_commits_the_messages_before_it(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException, room: int
) -> None:
    output = FullOutput(room, failure)
    monkeypatch.setattr(consume, "os", output)
    consumer = FakeConsumer(
        [message(n) for n in range(6)], [], [message(n) for n in range(6, 20)], [message(20)]
    )
    with pytest.raises(type(failure)):
        run(consumer)
    assert len(output.taken) == room
    assert consumer.committed == set(range(room // 10))


def test_what_was_polled_when_ctrl_c_came_is_not_committed_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consume, "os", FullOutput(1_000, OSError()))

    class Interrupted(list[Any]):
        """Ctrl-C comes when the caller first looks at it."""

        def __bool__(self) -> bool:
            raise KeyboardInterrupt

    consumer = FakeConsumer([message(0), message(1)], Interrupted([message(2)]))
    with pytest.raises(KeyboardInterrupt):
        run(consumer)
    assert consumer.committed == {0, 1}


def test_a_limit_commits_exactly_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "os", FullOutput(1_000, OSError()))
    consumer = FakeConsumer([message(n) for n in range(6)], [message(n) for n in range(6, 9)])
    run(consumer, limit=4)
    assert consumer.committed == {0, 1, 2, 3}


def test_a_commit_that_fails_after_a_failed_write_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consume, "os", FullOutput(25, BrokenPipeError()))
    stdout = SimpleNamespace(flush=lambda: None, fileno=lambda: 1)
    monkeypatch.setattr(consume, "sys", SimpleNamespace(stdout=stdout))
    consumer = FakeConsumer([message(n) for n in range(3)])
    consumer.refuses = True
    with pytest.raises(BrokenPipeError):
        run(consumer)
    assert capsys.readouterr().err == (
        "warning: messages that were written come again: another member has it\n"
    )
