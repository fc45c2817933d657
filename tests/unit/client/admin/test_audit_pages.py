"""Audit logs of several nodes read as one: the newest first, each line once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.admin.audit import AuditPage, event_of, read_audit
from semel.client.admin.settings import AskedNode
from semel.protos.errors import InvalidRequest, PermissionDenied, SemelError, Unavailable
from semel.protos.v1 import audit_pb2


class Nodes:
    """Nodes with a log each; a position is how many lines of it were written before."""

    def __init__(self, logs: dict[int, list[int] | SemelError], at_once: int = 3) -> None:
        self.logs = logs
        self.at_once = at_once
        self.calls = 0
        self.asked = [AskedNode("broker", number, str(number)) for number in logs]
        self.routes = SimpleNamespace(cluster_id="c")
        self.connections = self

    async def call(
        self, address: str, _: Any, method: str, request: Any, timeout_s: float
    ) -> audit_pb2.ReadAuditReply:
        """Tells at most `at_once` lines, and of those that are looked for one in ten."""
        assert method == "ReadAudit"
        assert timeout_s
        self.calls += 1
        log = self.logs[int(address)]
        if isinstance(log, SemelError):
            raise log
        begin = int(request.position or len(log))
        end = max(0, begin - self.at_once)
        return audit_pb2.ReadAuditReply(
            lines=[
                audit_pb2.AuditLine(position=str(place), line=line_of(int(address), log[place]))
                for place in range(begin - 1, end - 1, -1)
                if not request.search or log[place] % 10 == 0
            ],
            begin=str(begin),
            position=str(end),
            end=end == 0,
            kept=True,
            scanned_bytes=begin - end,
        )

    async def page(
        self, positions: dict[str, str] | None = None, limit: int = 5, search: str = ""
    ) -> AuditPage:
        cluster: Any = self
        return await read_audit(cluster, self.asked, positions or {}, search, "", limit)


def line_of(node: int, second: int) -> str:
    return json.dumps({"time": f"1970-01-01T00:00:{second:02}.000+00:00", "who": f"user:{node}"})


def seconds(page: AuditPage) -> list[int]:
    return [int(event.time[17:19]) for event in page.events]


async def walk(nodes: Nodes, limit: int, search: str = "") -> list[int]:
    """All pages one after the other."""
    found = list[int]()
    page = await nodes.page(limit=limit, search=search)
    for _ in range(100):
        found += seconds(page)
        if page.end:
            return found
        page = await nodes.page(page.positions, limit, search)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("at_once", [1, 3, 50])
async def test_each_line_comes_once_and_the_newest_first(limit: int, at_once: int) -> None:
    logs: dict[int, list[int] | SemelError] = {
        1: list(range(0, 60, 3)),
        2: list(range(1, 20)),
        3: [],
        4: [58, 59],
    }
    everything = [each for log in logs.values() if isinstance(log, list) for each in log]
    found = await walk(Nodes(logs, at_once), limit)
    assert found == sorted(everything, reverse=True)


async def test_what_comes_meanwhile_is_not_in_later_pages() -> None:
    one, two = [1, 5, 9], [2, 3, 4]
    nodes = Nodes({1: one, 2: two})
    page = await nodes.page(limit=2)
    assert seconds(page) == [9, 5]
    two.append(50)
    one.append(51)
    assert seconds(await nodes.page(page.positions, 10)) == [4, 3, 2, 1]


async def test_a_clock_that_was_set_back_does_not_lose_lines() -> None:
    nodes = Nodes({1: [10, 50, 20], 2: [30]})
    assert await walk(nodes, 1) == [30, 20, 50, 10]


async def test_a_search_goes_on_through_pages_without_a_line() -> None:
    nodes = Nodes({1: list(range(1, 60)), 2: [30]}, at_once=2)
    page = await nodes.page(limit=5, search="x")
    assert len(seconds(page)) < 5
    assert not page.end
    assert nodes.calls < 40  # a page has a budget
    assert await walk(nodes, 5, "x") == [50, 40, 30, 30, 20, 10]


async def test_nodes_that_are_away_are_named_and_stay_where_they_were() -> None:
    nodes = Nodes({1: [1, 2], 2: Unavailable("it is down")})
    page = await nodes.page({"broker 2": "7"})
    assert seconds(page) == [2, 1]
    assert [(each.node, each.reason) for each in page.unread] == [("broker 2", "it is down")]
    assert page.positions["broker 2"] == "7"
    nodes = Nodes({1: Unavailable("it is down"), 2: PermissionDenied("no")})
    with pytest.raises(PermissionDenied):
        await nodes.page()
    with pytest.raises(InvalidRequest, match="1 to 500"):
        await nodes.page(limit=0)


def test_a_line_is_told_whatever_kind_it_is_of() -> None:
    line = {"time": "t", "who": "user:a", "from": "ipv4:1", "method": "/s.v1.X/Call"}
    denied = line | {"action": "read", "resource": "topic:x", "result": "denied", "reason": "r"}
    event = event_of("broker 1", json.dumps(denied))
    assert (event.method, event.what, event.result) == ("Call", "read topic:x", "denied")
    assert (event.node, event.address, event.reason) == ("broker 1", "ipv4:1", "r")
    assert event_of("n", json.dumps(line | {"change": "name='x'"})).what == "name='x'"
    assert event_of("n", json.dumps(line | {"login": "token"})).what == "token"
    assert event_of("n", "{}").who == ""
