"""Changes of the routes: who has a version and the changes since has the same as who asks anew."""

from __future__ import annotations

import random

import pytest

from semel.broker.control_plane.route_cache import RoutesCopy
from semel.controller.brokers import routes as routes_module
from semel.controller.brokers.routes import RouteTable
from semel.protos.v1.controller_pb2 import GetRoutesRequest, GroupRoute, Routes, TopicRoute


def new_table(epoch: int = 1) -> RouteTable:
    return RouteTable("c", epoch, lambda: None)


def named(routes: Routes) -> tuple[list[str], list[str]]:
    return [topic.name for topic in routes.topics], list(routes.removed_topics)


def test_only_what_changed_of_topics_is_told() -> None:
    table = new_table()
    for name in "abc":
        table.set_topic(TopicRoute(name=name))
    known = table.version
    assert named(table.changes(known)) == ([], [])
    table.remove_topic("a")
    table.set_topic(TopicRoute(name="d"))
    table.set_topic(TopicRoute(name="b", topic_id=2))
    table.set_topic(TopicRoute(name="e"))
    table.remove_topic("e")
    found = table.changes(known)
    assert named(found) == (["b", "d"], ["a", "e"])
    assert (found.changes_since, found.version) == (known, table.version)


@pytest.mark.parametrize("known", [0, 5, 1 << 32, (2 << 32) - 1, (2 << 32) + 9])
def test_all_is_told_if_the_known_version_is_not_of_this_table(known: int) -> None:
    """It is of an older controller epoch, or, after a split of the controllers, of a newer one."""
    table = new_table(2)
    table.set_topic(TopicRoute(name="a"))
    found = table.changes(known)
    assert (named(found), found.changes_since) == ((["a"], []), 0)


def test_all_is_told_if_the_changes_are_not_remembered_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "CHANGES_MAX", 4)
    table = new_table()
    versions = [table.version]
    for number in range(5):
        table.set_topic(TopicRoute(name=f"t{number}"))
        versions.append(table.version)
    told = [len(table.changes(version).topics) for version in versions]
    assert told == [5, 5, 5, 2, 1, 0], "of five changes the newest two are remembered"


def test_a_copy_that_takes_changes_is_the_same_as_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "CHANGES_MAX", 8)
    chance = random.Random(1)
    table, copy = new_table(), RoutesCopy()
    whole = 0
    for step in range(2_000):
        if step % 500 == 499:
            table = new_table(2 + step // 500)  # another controller is active
            for number in range(3):
                table.set_topic(TopicRoute(name=f"t{number}", topic_id=step))
        name = f"t{chance.randrange(10)}"
        match chance.randrange(4):
            case 0:
                table.remove_topic(name)
            case 1:
                table.set_group(GroupRoute(group_id=1, term=step))
            case _:
                table.set_topic(TopicRoute(name=name, topic_id=chance.randrange(3)))
        if chance.random() < 0.3:
            found = table.changes(copy.version)
            whole += not found.changes_since
            copy.on_routes(found)
            wanted = table.snapshot()
            wanted.copied = True
            assert copy.answer(GetRoutesRequest()) == wanted
    assert 5 < whole < 300


def test_a_watch_is_concerned_by_what_it_asks_for() -> None:
    table = new_table()
    table.set_group(GroupRoute(group_id=1))
    table.set_topic(TopicRoute(name="a"))
    known = table.version

    def concerned() -> tuple[bool, bool, bool, bool]:
        return (
            table.concerns(known, (), groups_only=True),
            table.concerns(known, {"a"}, groups_only=False),
            table.concerns(known, {"b"}, groups_only=False),
            table.concerns(known, (), groups_only=False),
        )

    assert concerned() == (False, False, False, False)
    table.set_topic(TopicRoute(name="b"))
    assert concerned() == (False, False, True, True)
    table.remove_topic("a")
    assert concerned() == (False, True, True, True)
    known = table.version
    table.set_controllers(["h:1"])
    assert concerned() == (True, True, True, True)
    known = 0
    assert concerned() == (True, True, True, True)
