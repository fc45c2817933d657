"""The routes that clients of one machine keep for those that start without a controller."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from semel.client.config import ClientConfig
from semel.client.transport.cluster import Cluster
from semel.client.transport.routes_file import RoutesKeeper, find, routes_directory, save
from semel.protos import compat
from semel.protos.errors import Unavailable
from semel.protos.ids import TopicId
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.v1.controller_pb2 import GroupRoute, Routes, TopicRoute

CONTROLLER = "127.0.0.1:9"
"""Nobody listens there: a reserved port."""


def routes(version: int, *topics: str, cluster: str = "c1", controller: str = CONTROLLER) -> Routes:
    nodes = [NodeAddress(node_id=1, address="h1:1")]
    return Routes(
        version=version,
        cluster_id=cluster,
        groups=[GroupRoute(group_id=1, nodes=nodes, master_id=1, term=version)],
        topics=[TopicRoute(name=name, topic_id=version) for name in topics],
        controllers=[controller],
    )


def names(found: Routes | None) -> list[str]:
    assert found is not None
    return [topic.name for topic in found.topics]


def test_what_several_clients_learned_stands_together_and_the_newer_wins(tmp_path: Path) -> None:
    save(tmp_path, routes(5, "b"))
    save(tmp_path, routes(3, "a", "b"))
    found = find(tmp_path, [CONTROLLER])
    assert names(found) == ["a", "b"]
    assert found is not None
    assert found.version == 5
    assert [topic.topic_id for topic in found.topics] == [3, 5]


def test_a_file_is_found_by_any_address_of_its_cluster_and_no_other(tmp_path: Path) -> None:
    save(tmp_path, routes(1, "a"))
    save(tmp_path, routes(1, "z", cluster="c2", controller="other:1"))
    assert names(find(tmp_path, ["unknown:1", CONTROLLER])) == ["a"]
    assert names(find(tmp_path, ["other:1"])) == ["z"]
    assert find(tmp_path, ["h2:1"]) is None
    assert find(tmp_path / "none", [CONTROLLER]) is None


def test_of_two_clusters_at_one_address_the_one_seen_last_counts(tmp_path: Path) -> None:
    for cluster, seen in (("new", 2_000), ("old", 1_000)):
        save(tmp_path, routes(1, cluster, cluster=cluster))
        os.utime(tmp_path / f"{cluster}.routes", (seen, seen))
    assert names(find(tmp_path, [CONTROLLER])) == ["new"]


def test_only_the_owner_may_read_it_and_it_leads_nowhere_else(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "routes"
    save(directory, routes(1, "a"))
    (path,) = directory.iterdir()  # and no temporary file is left
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for cluster in ("../c", ".hidden", "", "a/b"):
        save(directory, routes(1, "a", cluster=cluster))
    assert list(directory.iterdir()) == [path]
    assert sorted(each.name for each in tmp_path.rglob("*") if each.is_file()) == [path.name]


def test_every_damaged_byte_makes_it_count_as_none(tmp_path: Path) -> None:
    save(tmp_path, routes(1, "a"))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert find(tmp_path, [CONTROLLER]) is None, at
        path.write_bytes(whole[:at])
        assert find(tmp_path, [CONTROLLER]) is None, at
    save(tmp_path, routes(1, "b"))  # and is replaced by what is known now
    assert names(find(tmp_path, [CONTROLLER])) == ["b"]


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    save(tmp_path / "file", routes(1, "a"))
    assert find(tmp_path / "file", [CONTROLLER]) is None


def test_where_it_is_and_how_it_is_switched_off() -> None:
    assert routes_directory({"HOME": "/h"}) == Path("/h/.cache/semel")
    assert routes_directory({"HOME": "/h", "XDG_CACHE_HOME": "/x"}) == Path("/x/semel")
    assert routes_directory({"HOME": "/h", "SEMEL_ROUTES_DIRECTORY": "/r"}) == Path("/r")
    assert routes_directory({"HOME": "/h", "SEMEL_ROUTES_DIRECTORY": ""}) is None
    assert routes_directory({}) is None


async def test_what_a_client_learned_is_written_and_deleted_topics_are_not(tmp_path: Path) -> None:
    keeper = RoutesKeeper(tmp_path)
    keeper.on_routes(routes(1, "a", "b"))
    keeper.on_routes(routes(2))
    keeper.on_topic_gone("b")
    running = asyncio.ensure_future(keeper.run())
    async with compat.timeout(60):
        while find(tmp_path, [CONTROLLER]) is None:
            await asyncio.sleep(0.01)
    assert names(find(tmp_path, [CONTROLLER])) == ["a"]
    keeper.on_routes(routes(3, "c"))
    running.cancel()
    await keeper.flush()  # a client that ends leaves nothing unwritten
    assert names(find(tmp_path, [CONTROLLER])) == ["a", "c"]


async def test_a_topic_that_is_gone_leaves_the_file_whoever_wrote_it(tmp_path: Path) -> None:
    """Else the file would grow with each topic that anybody ever made."""
    save(tmp_path, routes(1, "a", "b", "c"))
    cluster = Cluster((CONTROLLER,), ClientConfig(), tmp_path)
    cluster._on_routes(routes(2, "a"))
    cluster.on_topic_gone("b", None)
    cluster.on_topic_gone("a", TopicId(2))
    await cluster._keeper.flush()
    assert names(find(tmp_path, [CONTROLLER])) == ["c"]
    save(tmp_path, routes(3, "b"))  # another client made it again
    cluster._on_routes(routes(3))
    await cluster._keeper.flush()
    assert names(find(tmp_path, [CONTROLLER])) == ["b", "c"]
    cluster.on_topic_gone("c", None)
    cluster._on_routes(routes(4, "c"))
    await cluster._keeper.flush()
    assert names(find(tmp_path, [CONTROLLER])) == ["b", "c"], "it was made again before it went"


async def test_a_client_without_controllers_starts_with_the_file_alone(tmp_path: Path) -> None:
    config = ClientConfig(connect_timeout_ms=300)
    lost = Cluster((CONTROLLER,), config, None)
    with pytest.raises(Unavailable):
        await lost.start()
    await lost.close()
    save(tmp_path, routes(7, "a"))
    cluster = Cluster((CONTROLLER,), config, tmp_path)
    await cluster.start()
    assert (await cluster.topic("a")).topic_id == 7
    cluster._on_routes(routes(2, "b", cluster="c2"))  # another cluster lives there now
    assert cluster.routes.topic("a") is None
    assert (await cluster.topic("b")).topic_id == 2
    await cluster.close()
