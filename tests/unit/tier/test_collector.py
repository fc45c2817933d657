"""The collector over days of virtual time: what a reader may work with stays, the rest goes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from semel.protos.errors import StorageError
from semel.protos.ids import QueueId, QueueKey
from semel.tier import (
    ForeignTier,
    GarbagePolicy,
    ObjectMissing,
    OffsetRange,
    Pointer,
    QueueReader,
    Store,
    TierUnavailable,
    Wanted,
    claim,
    clock_us,
    collect,
    delete_queue,
    documents,
    layout,
    mark_deleted,
    no_manifest,
    publish,
    put_change,
    put_topic,
    read_manifest,
    rows_of,
    trim,
)
from semel.tier.changes import add_files
from semel.tier.planning import HOUR_US
from semel.tier.queue_writer import merge, put_rows
from tests.kit.faulty_store import FaultySystem, fails
from tests.kit.tier_rows import QUEUE, plain_rows

BEGIN_US = 1_000_000_000_000_000
REALLY_S = 1_700_000_000
"""Whatever has a later time was written by the test, and has not got its virtual time."""


class Days:
    """A queue whose tier changes in virtual time: every new object gets the time of its writing."""

    def __init__(self, folder: Path, seed: int, policy: GarbagePolicy) -> None:
        self.store = Store(FaultySystem(), str(folder), "s3://bucket")
        claim(self.store, "c")
        self.folder = folder
        self.rng = random.Random(seed)
        self.policy = policy
        self.now_us = BEGIN_US
        self.manifest = no_manifest("c", "orders", QUEUE, 0)
        self.decided: list[tuple[int, Pointer]] = []
        """Every decision with its time."""
        self.rows = rows_of([plain_rows(3_000)]).combine_chunks()

    def stamp(self) -> None:
        """Gives what was written since the last call the present time."""
        for path in self.folder.rglob("*.*"):
            if path.is_file() and path.stat().st_mtime > REALLY_S:
                os.utime(path, (self.now_us / 1e6, self.now_us / 1e6))

    def passes(self, hours: float) -> None:
        self.stamp()
        self.now_us += int(hours * HOUR_US)

    def change(self) -> None:
        """One change, which takes up to 11 hours; some are given up or lost on the way."""
        begun = self.manifest
        work = self.rng.choice((0.1, 1, 5, 11))
        kind = self.rng.choice(("add", "add", "add", "merge", "trim"))
        files = begun.files
        if kind == "merge" and len(files) >= 2:
            at = self.rng.randrange(len(files) - 1)
            change = merge(
                QueueReader(self.store, begun),
                self.store,
                OffsetRange(files[at].start, files[at + 1].end),
            )
        elif kind == "trim" and begun.start < begun.end:
            change = trim(begun, self.rng.randrange(begun.start, begun.end))
        else:
            count = self.rng.choice((5, 10))
            rows = self.rows.slice(begun.end, count)
            change = add_files(begun, [put_rows(self.store, "c", QUEUE, rows)])
        self.passes(work)
        pointer = put_change(self.store, change)
        if self.rng.random() < 0.8:
            self.decided.append((self.now_us, pointer))
            self.manifest = change.manifest
            if self.rng.random() < 0.2:
                self.passes(50)  # the store was down
            publish(self.store, pointer)
        self.stamp()

    def collect(self) -> list[str]:
        self.stamp()
        return collect(
            self.store,
            "c",
            QUEUE,
            lambda: self.decided[-1][1] if self.decided else None,
            now_us=self.now_us,
            policy=self.policy,
        )

    def check(self) -> None:
        """Every pointer that was the newest within the last 24 hours can be read whole."""
        ends = [*(at for at, _ in self.decided[1:]), self.now_us][: len(self.decided)]
        for (_, pointer), end_us in zip(self.decided, ends, strict=True):
            if end_us >= self.now_us - 24 * HOUR_US:
                manifest = read_manifest(self.store, pointer)
                wanted = Wanted(start=manifest.start, end=manifest.end)
                offsets = [
                    at
                    for part in QueueReader(self.store, manifest).rows(wanted, ["offset"])
                    for at in part[0].to_pylist()
                ]
                assert offsets == list(range(manifest.start, manifest.end))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.change()
            self.passes(self.rng.choice((0, 1, 6, 30)))
            self.collect()
            self.check()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_reader_may_work_with_stays_and_the_rest_goes(tmp_path: Path, seed: int) -> None:
    days = Days(tmp_path, seed, GarbagePolicy())
    days.run(25)
    days.passes(100)
    days.collect()
    days.collect()
    assert days.collect() == []
    left = [each.name for each in days.store.objects(layout.queue_folder("c", QUEUE))]
    reader = QueueReader(days.store, days.manifest)
    assert len(left) == len(list(reader.all_files())) + len(days.manifest.pages) + 2
    days.check()


def test_a_collector_that_forgets_how_long_work_may_take_is_caught(tmp_path: Path) -> None:
    """The planted bug: what is older than a reader's time is garbage, though a decision may still
    come that names it, or came within that time."""
    broken = 0
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        days = Days(tmp_path / str(seed), seed, GarbagePolicy(reader_us=HOUR_US, work_us=0))
        try:
            days.run(25)
        except StorageError:
            broken += 1
    assert broken >= 4


def test_manifests_are_read_in_an_order_that_repeats(tmp_path: Path) -> None:
    """Were it that of a set, no seed of a simulated world with a tier would repeat itself."""
    days = Days(tmp_path, 0, GarbagePolicy())
    pointers = []
    for _ in range(6):
        rows = days.rows.slice(days.manifest.end, 5)
        change = add_files(days.manifest, [put_rows(days.store, "c", QUEUE, rows)])
        pointers.append(put_change(days.store, change))
        days.manifest = change.manifest
        days.passes(1)
    days.passes(50)  # the store was down: all of them came late, and may be in use
    for pointer in pointers:
        publish(days.store, pointer)
    days.decided.append((days.now_us, pointers[-1]))
    system = days.store._filesystem
    assert isinstance(system, FaultySystem)
    system.calls.clear()
    days.collect()
    kinds = ("/pointers/", "/manifests/")
    opened = [path for call, path in system.calls if call == "open_input_file"]
    read = [[path for path in opened if kind in path] for kind in kinds]
    assert read == [sorted(each) for each in read]
    assert len(read[1]) == 6


def filled(folder: Path) -> tuple[Store, FaultySystem, Pointer]:
    """A queue with one file, and garbage of a change that was lost."""
    system = FaultySystem()
    store = Store(system, str(folder), "s3://bucket")
    claim(store, "c")
    rows = rows_of([plain_rows(10)])
    change = add_files(no_manifest("c", "orders", QUEUE, 0), [put_rows(store, "c", QUEUE, rows)])
    pointer = put_change(store, change)
    publish(store, pointer)
    put_rows(store, "c", QUEUE, rows.slice(0, 5))
    return store, system, pointer


LATER = 1_000 * HOUR_US


def test_what_is_decided_between_list_and_delete_is_kept(tmp_path: Path) -> None:
    store, _, pointer = filled(tmp_path)
    manifest = read_manifest(store, pointer)
    names: list[str] = []

    def decided() -> Pointer:
        """At this moment a master decides the merge whose file the list has already."""
        store.delete([pointer.name])
        names.extend(each.name for each in store.objects("c"))
        return pointer

    now_us = clock_us(store, "c") + LATER
    # The copy was listed and is gone: the collector ends with an error and deletes nothing.
    with pytest.raises(ObjectMissing):
        collect(store, "c", QUEUE, decided, now_us=now_us, policy=GarbagePolicy())
    assert [each.name for each in store.objects("c")] == names
    publish(store, pointer)
    (gone,) = collect(store, "c", QUEUE, lambda: pointer, now_us=now_us, policy=GarbagePolicy())
    assert "/data/" in gone
    assert gone != manifest.files[0].name("c", QUEUE)


def test_nothing_is_deleted_when_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    store, system, pointer = filled(tmp_path)
    before = store.objects("c")
    now_us = clock_us(store, "c") + LATER
    system.plant("open_input_file", *[lambda work: work()] * 2, fails("AWS Error SLOW_DOWN"))
    with pytest.raises(TierUnavailable):
        collect(store, "c", QUEUE, lambda: pointer, now_us=now_us, policy=GarbagePolicy())
    assert {each.name for each in before} < {each.name for each in store.objects("c")}


def test_a_place_that_has_another_owner_is_left_alone(tmp_path: Path) -> None:
    store, _, pointer = filled(tmp_path)
    store.put(layout.IDENTITY, documents.write("identity", {"cluster": "other"}))
    before = store.objects("c")
    with pytest.raises(ForeignTier, match="does not belong to cluster 'c' any more"):
        collect(store, "c", QUEUE, lambda: pointer, now_us=1 << 60, policy=GarbagePolicy())
    assert store.objects("c") == before


def test_a_clock_that_the_list_does_not_have_yet_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = filled(tmp_path)
    monkeypatch.setattr(store, "objects", lambda *_, **__: [])
    with pytest.raises(TierUnavailable, match="ask again"):
        clock_us(store, "c")


def test_the_stores_clock_is_that_of_its_objects(tmp_path: Path) -> None:
    store, _, _ = filled(tmp_path)
    first = clock_us(store, "c")
    assert clock_us(store, "c") >= first >= store.objects("c/topics")[0].modified_us


def test_a_deleted_queue_goes_after_a_day_and_the_topic_with_its_last_queue(tmp_path: Path) -> None:
    store, _, pointer = filled(tmp_path)
    other = QUEUE._replace(queue_id=QueueId(4))
    put_topic(store, "c", "orders", QUEUE.topic_id)
    put_rows(store, "c", other, rows_of([plain_rows(3)]))
    topic = layout.topic_name("c", QUEUE.topic_id)
    policy, begin_us = GarbagePolicy(), clock_us(store, "c")

    def delete(queue: QueueKey, now_us: int) -> list[str]:
        return delete_queue(store, "c", queue, now_us=now_us, policy=policy)

    def left() -> list[str]:
        return [each.name for each in store.objects("c/topics")]

    assert delete(QUEUE, begin_us + LATER) == [], "nothing says that it was deleted"
    mark_deleted(store, "c", QUEUE)
    noted = tmp_path / layout.deleted_name("c", QUEUE)
    os.utime(noted, ns=(begin_us * 1000, begin_us * 1000))
    mark_deleted(store, "c", QUEUE)
    assert noted.stat().st_mtime < begin_us / 1e6 + 1, "its day begins once"
    assert delete(QUEUE, begin_us + policy.reader_us) == []
    assert read_manifest(store, pointer)
    assert delete(QUEUE, begin_us + policy.reader_us + 2_000_000)
    assert all(layout.queue_folder("c", other) in name or name == topic for name in left())
    assert len(left()) == 2
    mark_deleted(store, "c", other)
    assert topic in delete(other, clock_us(store, "c") + LATER)
    assert left() == []
    claimed = tmp_path / layout.IDENTITY
    claimed.write_bytes(documents.write("identity", {"cluster": "d"}))
    with pytest.raises(ForeignTier):
        delete(QUEUE, begin_us + LATER)
