"""Pages of messages: each that fits is on exactly one of them, in the order of its queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from semel.web.browsing import (
    Budget,
    Found,
    parse_cursor,
    print_cursor,
    read_back,
    read_on,
)


class Stored:
    """A message."""

    def __init__(self, queue: int, offset: int, timestamp_us: int) -> None:
        self.queue = queue
        self.offset = offset
        self.timestamp_us = timestamp_us
        self.value = b"v"

    @property
    def name(self) -> tuple[int, int]:
        return self.queue, self.offset


class Reader:
    """Gives out what a topic has, a few at a time."""

    def __init__(self, topic: dict[int, list[Stored]], start: Any, end: Any, at_once: int) -> None:
        self._left = [
            message
            for queue, messages in topic.items()
            if queue in start
            for message in messages
            if start[queue] <= message.offset < end[queue]
        ]
        self._positions = dict(start)
        self._end = end
        self._at_once = at_once
        self._polled = False

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    @property
    def finished(self) -> bool:
        return self._polled and not self._left

    async def poll(self, most: int, _: float) -> list[Stored]:
        self._polled = True
        given, self._left = self._left[: self._at_once], self._left[self._at_once :]
        for message in given:
            self._positions[message.queue] = message.offset + 1
        return given

    def positions(self) -> dict[int, int]:
        return dict(self._positions)


class Topic:
    """A client that has one topic; some offsets are gaps of compaction."""

    def __init__(self, queues: list[list[tuple[bool, int]]], at_once: int) -> None:
        self.queues = {
            queue: [
                Stored(queue, offset, time) for offset, (there, time) in enumerate(rows) if there
            ]
            for queue, rows in enumerate(queues)
        }
        self.starts = dict.fromkeys(self.queues, 0)
        self.ends = {queue: len(rows) for queue, rows in enumerate(queues)}
        self._at_once = at_once

    def reader(self, _: str, *, start: Any, end: Any, **__: object) -> Reader:
        return Reader(self.queues, start, end, self._at_once)


_QUEUES = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=30), min_size=1, max_size=4
)


def keeps(message: Any) -> bool:
    return bool(message.offset % 3 != 1)


def pages(topic: Topic, limit: int, *, back: bool, fits: Any) -> list[Found]:
    """All pages, one after the other."""

    async def turn() -> list[Found]:
        client: Any = topic
        cursor, found = dict(topic.ends if back else topic.starts), []
        for _ in range(1_000):
            if back:
                page = await read_back(client, "t", topic.starts, cursor, fits, limit, Budget())
            else:
                page = await read_on(client, "t", cursor, topic.ends, fits, limit, Budget())
            found.append(page)
            cursor = parse_cursor(print_cursor(page.cursor))
            if not page.left:
                return found
        raise AssertionError("the pages do not end")

    return asyncio.run(turn())


@given(_QUEUES, st.integers(1, 7), st.integers(1, 9), st.booleans(), st.booleans())
def test_pages_have_each_message_once(
    queues: list[list[tuple[bool, int]]], at_once: int, limit: int, back: bool, filtered: bool
) -> None:
    topic = Topic(queues, at_once)
    found = pages(topic, limit, back=back, fits=keeps if filtered else None)
    every = [message for messages in topic.queues.values() for message in messages]
    wanted = sorted(each.name for each in every if not filtered or keeps(each))
    given = [(one.queue, one.offset) for page in found for one in page.messages]
    assert sorted(given) == wanted
    for queue in topic.queues:
        offsets = [offset for number, offset in given if number == queue]
        assert offsets == sorted(offsets, reverse=back)
    assert all(len(page.messages) <= limit for page in found)


def test_the_newest_of_all_queues_come_first() -> None:
    topic = Topic([[(True, 10), (True, 30)], [(True, 20), (True, 40)]], at_once=9)
    found = pages(topic, 3, back=True, fits=None)
    assert [message.timestamp_us for message in found[0].messages] == [40, 30, 20]
    assert [message.timestamp_us for message in found[1].messages] == [10]


def test_a_page_ends_when_its_budget_is_used_up() -> None:
    topic = Topic([[(True, 0)] * 100], at_once=10)
    client: Any = topic
    page = asyncio.run(
        read_on(client, "t", {0: 0}, topic.ends, lambda _: False, 50, Budget(messages=25))
    )
    assert (page.messages, page.scanned, page.left, page.cursor) == ([], 30, 70, {0: 30})


@pytest.mark.parametrize("text", ["x", "1", "1:x", "-1:3", "1:2:3", "1:²", ",".join("1" * 2000)])
def test_a_cursor_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cursor(text)
    with pytest.raises(InvalidRequest):
        parse_cursor(",".join(f"{queue}:0" for queue in range(65)))
