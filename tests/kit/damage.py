"""Flips a byte in a file of a stopped node, which must become whole again.

How it works. A group of three holds everything that a node can have on disk: segments, kept
records, two checkpoints, a vote, an identity. `Wear` stops one node, damages a file, starts it,
waits for a scrub and reads every message from it. The flip has had an effect if somebody
wrote over it: then the file differs from what the damage had left, or is gone.

Not here: damage on more than one node (`integration/test_repair.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from semel.broker.log import LogConfig
from semel.broker.log.hard_state import BLOCK_BYTES, RECORD_STRUCT, SLOT_BLOCKS
from semel.broker.log.kept import RECORD_STRUCT as KEPT_RECORD
from semel.broker.log.segment import (
    HEADER_STRUCT,
    ID_BYTES,
    IDS_AT,
    PAGE,
    decode_header,
    decode_seal,
    salt,
)
from semel.protos import compat
from semel.protos.ids import QueueId, QueueKey
from semel.protos.v1 import common_pb2
from tests.kit.brokers import QUEUE, TOPIC, BrokerGroup, RawClient, make_batch

OLD = QueueKey(TOPIC, QueueId(1))
"""Written first and kept for ever, so that its messages end in kept files."""
VICTIM = 2
SIZE = 4_000
_OLD_MESSAGES = 6
_MESSAGES = 60

Damage = Callable[["Wear"], list[tuple[Path, int]]]
"""Chooses bytes to flip, by file and place."""


class Wear:
    """A group of three with one node that is damaged again and again."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.data = directory / str(VICTIM)
        self.group = BrokerGroup(
            directory,
            log=LogConfig(
                segment_bytes=64 << 10,
                ids_per_segment=32,
                cache_bytes=16 << 10,
                fill_bytes_per_second=0,
            ),
            retained_log_bytes=32 << 10,
            retention_check_ms=50,
            scrub_bytes_per_second=1 << 30,
            scrub_pause_ms=50,
        )
        self.stored = 0
        self.old = [str(number).encode().rjust(SIZE, b"o") for number in range(_OLD_MESSAGES)]

    async def fill(self) -> None:
        """Writes until the node has files of every kind."""
        master = await self.group.master()
        async with RawClient(master.address) as client:
            await client.create_queue(OLD)
            await client.create_queue(settings=common_pb2.TopicSettings(retention_bytes=100_000))
            await client.fence(1, key=OLD)
            await client.fence(1)
            for number, value in enumerate(self.old):
                await client.produce(make_batch(number - 1, [value], key=OLD))
        for _ in range(_MESSAGES):
            await self._store()
        async with compat.timeout(30):
            while not all(
                node.replica.log.stats().kept_records for node in self.group.running.values()
            ):
                await asyncio.sleep(0.02)
        victim = self.group.running[VICTIM]  # type: ignore[index]
        await victim.checkpoints.write()

    async def _store(self) -> None:
        async with RawClient((await self.group.master()).address) as client:
            value = str(self.stored).encode().rjust(SIZE, b".")
            await client.produce(make_batch(self.stored - 1, [value]))
        self.stored += 1
        await self.group.settled()

    def files(self, pattern: str) -> list[Path]:
        """Files of the stopped node, oldest first."""
        found = sorted(self.data.glob(pattern))
        assert found, f"the node has no {pattern}"
        return found

    async def hurt(self, damage: Damage) -> None:
        """Stops the node, damages it, starts it and checks that it is whole again."""
        await self._store()  # an entry at least behind what a snapshot may have brought
        await self.group.stop(VICTIM)
        flips = damage(self)
        left: dict[Path, bytes] = {}
        for path, at in flips:
            data = bytearray(path.read_bytes())
            data[at] ^= 1 << self.random.randrange(8)
            path.write_bytes(data)
            left[path] = bytes(data)
        node = await self.group.start(VICTIM)
        async with compat.timeout(30):
            log = node.replica.log
            while not node.scrub.passes or log.damaged or log.damaged_records:
                await asyncio.sleep(0.02)
            await self._whole()
            if damage is dead_record:
                return  # it may stay as it is until its file goes
            for path, flipped in left.items():
                while path.exists() and path.read_bytes() == flipped:
                    await asyncio.sleep(0.05)  # the next scrub, and a peer's answer

    async def _whole(self) -> None:
        """Checks that the node serves what the master serves, and that its table equals its log."""
        index = await self.group.settled()
        victim = self.group.running[VICTIM]  # type: ignore[index]
        while victim.replica.non_counting:
            await asyncio.sleep(0.02)
        master = await self.group.master()
        start = master.replica.state.queues[QUEUE].log_start_offset
        async with RawClient(victim.address) as client, RawClient(master.address) as other:
            assert await client.values(OLD, any_replica=True) == self.old
            found = [await one.verify(index, [OLD, QUEUE]) for one in (client, other)]
            for offset in range(start, self.stored, 4):
                _, parts = await client.fetch(offset=offset, max_bytes=1, any_replica=True)
                assert len(parts) == 1
            again = await client.verify(index, [OLD, QUEUE])
        assert again == found[1], f"{again} is not {found[1]}"
        assert all(not queue.problems and not queue.missing for queue in again.values())


def _segment(path: Path) -> tuple[int, int, int]:
    """Begin and end of a sealed segment's frames, and their number."""
    page = path.read_bytes()[:PAGE]
    header = decode_header(page)
    assert header is not None
    assert not isinstance(header, int)
    seal = decode_seal(page, salt(header.generation))
    assert seal is not None
    return header.frames_at, seal.end, seal.count


def identity(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.random.choice(wear.files("IDENTITY*"))
    return [(path, wear.random.randrange(path.stat().st_size))]


def vote(wear: Wear) -> list[tuple[Path, int]]:
    (path,) = wear.files("hard_state")
    numbers = [
        RECORD_STRUCT.unpack_from(path.read_bytes(), block * BLOCK_BYTES)[3] for block in range(4)
    ]
    block = wear.random.choice(SLOT_BLOCKS[max(numbers) % 2])
    return [(path, block * BLOCK_BYTES + wear.random.randrange(RECORD_STRUCT.size))]


def every_copy_of_the_vote(wear: Wear) -> list[tuple[Path, int]]:
    (path,) = wear.files("hard_state")
    return [
        (path, block * BLOCK_BYTES + wear.random.randrange(RECORD_STRUCT.size))
        for block in range(4)
    ]


def current(wear: Wear) -> list[tuple[Path, int]]:
    (path,) = wear.files("log/CURRENT")
    return [(path, wear.random.randrange(path.stat().st_size))]


def segment_header(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.random.choice(wear.files("log/log-*/segment-*"))
    page = wear.random.choice([0, PAGE])
    return [(path, page + wear.random.randrange(HEADER_STRUCT.size))]


def both_segment_headers(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.random.choice(wear.files("log/log-*/segment-*"))
    return [(path, page + wear.random.randrange(HEADER_STRUCT.size)) for page in (0, PAGE)]


def segment_id(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.random.choice(wear.files("log/log-*/segment-*"))
    _, _, count = _segment(path)
    return [(path, IDS_AT + wear.random.randrange(count * ID_BYTES))]


def frame(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.random.choice(wear.files("log/log-*/segment-*"))
    start, end, _ = _segment(path)
    return [(path, wear.random.randrange(start, end))]


def last_frame(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.files("log/log-*/segment-*")[-1]
    _, end, _ = _segment(path)
    return [(path, end - 1 - wear.random.randrange(40))]


def checkpoint(wear: Wear) -> list[tuple[Path, int]]:
    path = wear.random.choice(wear.files("log/log-*/checkpoint-*"))
    return [(path, wear.random.randrange(path.stat().st_size))]


def every_checkpoint(wear: Wear) -> list[tuple[Path, int]]:
    return [
        (path, wear.random.randrange(path.stat().st_size))
        for path in wear.files("log/log-*/checkpoint-*")
    ]


def kept_record(wear: Wear) -> list[tuple[Path, int]]:
    """The place of one byte of a message that is live."""
    value = wear.random.choice(wear.old)
    for path in wear.files("log/log-*/kept-*"):
        at = path.read_bytes().find(value)
        if at >= 0:
            return [(path, at + wear.random.randrange(SIZE))]
    raise AssertionError("no live message is in a kept file")


def dead_record(wear: Wear) -> list[tuple[Path, int]]:
    """The place of one byte of a kept file's first record. Its message may be trimmed: nobody must
    wait for the repair of a dead record."""
    path = wear.random.choice(wear.files("log/log-*/kept-*"))
    first = 64 + KEPT_RECORD.size  # the payload behind the file's and the record's header
    return [(path, first + wear.random.randrange(SIZE))]


def kept_files_emptied(wear: Wear) -> list[tuple[Path, int]]:
    """Kept files whose writes went elsewhere: not even their tables tell what is missing."""
    for path in wear.files("log/log-*/kept-*"):
        path.write_bytes(b"")
    return []


KINDS: list[Damage] = [
    identity,
    vote,
    every_copy_of_the_vote,
    current,
    segment_header,
    both_segment_headers,
    segment_id,
    frame,
    last_frame,
    checkpoint,
    every_checkpoint,
    kept_record,
    dead_record,
    kept_files_emptied,
]
