"""The client's list of topics: searched, paged, and brought up to date by changes alone."""

from __future__ import annotations

from typing import Any

import pytest

from semel.client.admin.topic_index import ALL_AGAIN_S, TopicIndex
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import controller_pb2


class Controllers:
    """Answers GetRoutes as the controllers do."""

    def __init__(self) -> None:
        self.version = 1
        self.topics: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        self.asked: list[int] = []
        self.sent = 0
        self.routes = self

    def on_routes(self, _: object) -> None:
        """The client's own routes."""

    def change(self, name: str, topic_id: int = 0) -> None:
        self.version += 1
        self.changed[name] = self.version
        if topic_id:
            self.topics[name] = topic_id
        else:
            del self.topics[name]

    async def controller(self, method: str, request: Any) -> controller_pb2.Routes:
        assert method == "GetRoutes"
        known = request.known_version
        self.asked.append(known)
        routes = controller_pb2.Routes(version=self.version)
        routes.groups.add(group_id=1)
        names = set(self.topics)
        if known:
            routes.changes_since = known
            names = {name for name, at in self.changed.items() if at > known}
            routes.removed_topics.extend(names - self.topics.keys())
        for name in sorted(names & self.topics.keys()):
            routes.topics.add(name=name, topic_id=self.topics[name])
        self.sent = len(routes.topics)
        return routes


class Indexed(TopicIndex):
    """An index with a clock of the test."""

    def __init__(self, controllers: Any) -> None:
        self.now_s = 100.0
        super().__init__(controllers, lambda: self.now_s)

    async def names(self, search: str = "", start: int = 0, limit: int = 50) -> list[str]:
        return [topic.name for topic in (await self.page(search, start, limit)).topics]


async def test_only_changes_are_fetched_after_the_first_time() -> None:
    controllers = Controllers()
    for number in range(1, 1_001):
        controllers.topics[f"t{number:04}"] = number
    index = Indexed(controllers)
    page = await index.page("T00", 2, 3)
    assert [topic.name for topic in page.topics] == ["t0003", "t0004", "t0005"]
    assert (page.matched, page.scanned) == (99, 1_000)
    assert (controllers.asked, controllers.sent) == ([0], 1_000)

    controllers.change("t0003")
    controllers.change("t00021", 2_001)
    assert await index.names("T00", 1, 3) == ["t0002", "t00021", "t0004"]
    assert (controllers.asked, controllers.sent) == ([0, 1], 1)
    assert index.name_of(2_001) == "t00021"
    assert index.name_of(3) is None
    assert index.group_ids == [1]


async def test_all_are_fetched_again_now_and_then() -> None:
    controllers = Controllers()
    controllers.topics = {"a": 1}
    index = Indexed(controllers)
    assert await index.names() == ["a"]
    controllers.topics["seen only since a rule changed"] = 2
    assert await index.names() == ["a"]
    index.now_s += ALL_AGAIN_S + 1
    assert await index.names() == ["a", "seen only since a rule changed"]
    assert controllers.asked == [0, 1, 0]


async def test_changes_that_came_late_are_of_no_use() -> None:
    controllers = Controllers()
    controllers.topics = {"a": 1}
    index = Indexed(controllers)
    await index.refresh()
    late = await controllers.controller(
        "GetRoutes", controller_pb2.GetRoutesRequest(known_version=1)
    )
    controllers.change("b", 2)
    assert await index.names() == ["a", "b"]
    controllers.change("a")
    index.on_routes(late, index.now_s)
    assert await index.names() == ["b"]


async def test_a_page_has_bounds() -> None:
    index = Indexed(Controllers())
    for search, start, limit in (("", -1, 5), ("", 0, 0), ("", 0, 1_001), (None, 0, 5)):
        with pytest.raises(InvalidRequest):
            await index.page(search, start, limit)  # type: ignore[arg-type]
    assert await index.names(start=10) == []
