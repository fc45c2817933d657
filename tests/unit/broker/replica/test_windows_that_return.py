"""The windows of a topic follow one another on a node: its last queue leaves, and one comes back. A
node that starts goes through the older ones again, with the index of the newest one on its disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from semel.broker.dedup.id_store import MemoryIdStore, Writes
from semel.broker.dedup.moved_ids import unpack
from semel.broker.dedup.run_list import encode_end, end_key
from semel.broker.state import State
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.id_node import SEED, IdNode
from tests.kit.state_log import KEY, Record, control, ref

OTHER_SEED = b"another seed----"
FIRST, SECOND = 3 << 24, 6 << 24
"""The first arrivals of the windows: entries 3 and 6 begin them."""
IDS = 10


def step(name: str, job: int, **fields: Any) -> Record:
    given: Any = {"group_id": 2, "step": f"MOVE_STEP_{name}", **fields}
    return control(move_queue=control_pb2.MoveQueue(queue=ref(KEY), job=job, **given))


def begin(job: int, seed: bytes) -> Record:
    dedup = common_pb2.IdDedup(window_bytes=1 << 20, seed=seed)
    create = control_pb2.CreateQueue(
        queue=ref(KEY), topic="t", slot_end=65_536, settings=common_pb2.TopicSettings(dedup=dedup)
    )
    return step("BEGIN", job, create=create)


def packed(window: int) -> bytes:
    """The ids of the first or the second window, as a move brings them."""
    columns = np.arange(5 * IDS, dtype="<u8").reshape(5, IDS) * 997 + 1_000_003 * window
    columns[3:] = 0
    return columns.tobytes()


def ids_of(job: int, seed: bytes, first_arrival: int) -> Record:
    ids = packed(job)
    return step("IDS", job, ids=ids, ids_to=IDS, seed=seed, first_arrival=first_arrival)


def follow(node: IdNode, frames: list[bytes]) -> None:
    """Applies those of a log's entries that the node has not applied."""
    for frame in frames[node.state.applied_index :]:
        node.follow(frame)


def log_of(second: bytes = SEED) -> list[bytes]:
    """Entry 3 begins a window and 4 brings its ids, 5 ends it, 6 begins another one and 7 brings
    its ids."""
    node = IdNode()
    node.apply([control(feature_level=control_pb2.FeatureLevel(level=1))])
    node.apply([control(feature_level=control_pb2.FeatureLevel(level=LEVEL_MAX))])
    node.apply([begin(1, SEED)])
    node.apply([ids_of(1, SEED, FIRST)])
    node.apply([step("ABORT", 1)])
    node.apply([begin(2, second)])
    node.apply([ids_of(2, second, SECOND)])
    node.ids.close()
    return node.frames


async def all_found(node: IdNode) -> bool:
    """Whether the index has every id of the second window, and none of the first."""
    keys = np.concatenate([unpack(packed(window), 0)[0] for window in (2, 1)])
    first = node.window.first_arrival
    search = node.index.search_memory(keys, first)
    hits = node.index.search_disk(search, keys, first).hits
    return sorted(hits.rows.tolist()) == list(range(IDS))


@contextmanager
def held(node: IdNode) -> Iterator[None]:
    """The thread that writes and drops does nothing meanwhile."""
    release = threading.Event()
    node.ids._writer.submit(release.wait)
    try:
        yield
    finally:
        release.set()


async def settled_store(frames: list[bytes]) -> MemoryIdStore:
    """What a node has on disk that has applied all of a log."""
    node = IdNode()
    follow(node, frames)
    await node.ids.settle({KEY.topic_id: node.window.next_arrival})
    assert await all_found(node)
    node.ids.close()
    node.store.crash()
    return node.store


@pytest.mark.parametrize("second", [SEED, OTHER_SEED], ids=["one seed", "two seeds"])
@pytest.mark.parametrize("applied", [3, 4])
async def test_an_older_window_misses_no_ids(second: bytes, applied: int) -> None:
    """Its end is committed, so nobody will ask for what it counts."""
    frames = log_of(second)
    old = IdNode()
    follow(old, frames[:applied])
    checkpoint = b"".join(old.state.to_parts())
    old.ids.close()
    new = IdNode(await settled_store(frames), state=State.from_bytes(checkpoint))
    new.ids.follow()
    follow(new, frames)
    assert new.behind == []
    assert not new.ids.gaps()
    assert await all_found(new)
    new.ids.close()


async def test_an_index_that_ended_is_not_missed_in_an_older_window() -> None:
    frames = log_of()
    node = IdNode()
    follow(node, frames[:4])
    checkpoint = b"".join(node.state.to_parts())
    await node.ids.settle({KEY.topic_id: node.window.next_arrival})
    follow(node, frames[:5])
    node.ids.close()
    node.store.sync()
    again = IdNode(node.store, state=State.from_bytes(checkpoint))
    again.ids.follow()
    assert again.behind == []
    follow(again, frames)
    assert again.behind == []
    again.ids.close()


async def test_a_window_that_returns_has_nothing_that_is_about_to_be_dropped() -> None:
    """The thread drops the index of the window before only after the next one has begun."""
    frames = log_of()
    node = IdNode(await settled_store(frames))
    with held(node):
        follow(node, frames)
    await node.ids.write(lambda: None)
    assert await all_found(node)
    await node.ids.settle({KEY.topic_id: node.window.next_arrival})
    assert await all_found(node)
    node.ids.close()
    node.store.crash()
    again = IdNode(node.store, state=State.from_bytes(b"".join(node.state.to_parts())))
    again.ids.follow()
    assert again.behind == []
    assert await all_found(again)
    again.ids.close()


async def test_what_is_missing_is_missed_where_the_last_end_is_known_to_be() -> None:
    """Even if no window ends there."""
    frames = log_of()
    node = IdNode()
    node.store.write(Writes(puts=[(end_key(KEY.topic_id), encode_end(len(frames)))]))
    follow(node, frames[:-1])
    node.index.skip_to(SECOND + IDS)
    node.ids.check()
    assert node.behind == []
    follow(node, frames)
    assert node.behind == [True]
    assert node.ids.gaps() == {KEY.topic_id: range(SECOND, SECOND + IDS)}
    node.ids.close()
