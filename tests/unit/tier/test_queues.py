"""Queues are written, merged, trimmed, collected and read; a crash at any call loses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semel.protos.errors import InvalidRequest, OffsetOutOfRange, UnknownTopic
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import (
    CorruptTier,
    FileEntry,
    ForeignTier,
    GarbagePolicy,
    Manifest,
    ObjectMissing,
    OffsetRange,
    Pointer,
    QueueReader,
    Store,
    TierMisconfigured,
    TierUnavailable,
    Wanted,
    add_files,
    add_rows,
    claim,
    clock_us,
    collect,
    digest_of,
    documents,
    find_topic,
    layout,
    merge,
    newest_pointer,
    no_manifest,
    owner_of,
    publish,
    put_change,
    put_rows,
    put_topic,
    queues_of,
    read_manifest,
    rows_of,
    topics_of,
    trim,
)
from semel.tier.planning import HOUR_US, StoredObject
from tests.kit.faulty_store import FaultySystem, fails, loses_the_reply
from tests.kit.tier_rows import QUEUE, TIME_US, plain_rows, random_rows


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Without the syncs of a real folder, which cost most of these tests' time."""
    return Store(FaultySystem(), str(tmp_path), "s3://bucket")


def tiered(store: Store, *parts: pa.Table) -> Manifest:
    """A queue with one file for each part, whose pointer is published."""
    manifest = no_manifest("c", "orders", QUEUE, 0)
    for part in parts:
        change = add_rows(store, manifest, part)
        publish(store, put_change(store, change))
        manifest = change.manifest
    return manifest


def split(rows: pa.Table, size: int) -> list[pa.Table]:
    return [rows.slice(at, size) for at in range(0, rows.num_rows, size)]


def read(store: Store, queue: QueueKey = QUEUE) -> QueueReader:
    pointer = newest_pointer(store, "c", queue)
    assert pointer is not None
    return QueueReader(store, read_manifest(store, pointer))


def all_rows(reader: QueueReader) -> pa.Table:
    manifest = reader.manifest
    return pa.concat_tables(reader.rows(Wanted(start=manifest.start, end=manifest.end)))


def test_rows_are_read_as_they_were_written(store: Store) -> None:
    rows = rows_of(random_rows(1, 100))
    manifest = tiered(store, *split(rows, 70))
    reader = read(store)
    assert reader.manifest == manifest
    assert all_rows(reader).to_pylist() == rows.to_pylist()
    for entry in reader.all_files():
        part = rows.slice(entry.start, entry.end - entry.start)
        assert entry.rows_sha256 == digest_of(part)  # the log and the tier are compared by it
        assert reader.whole_file(entry).to_pylist() == part.to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_any_range_and_columns_are_read(store: Store, seed: int) -> None:
    rows = rows_of(random_rows(seed, 60))
    tiered(store, *split(rows, 50))
    reader = read(store)
    rng = random.Random(seed)
    for _ in range(20):
        start = rng.randrange(rows.num_rows)
        end = rng.randrange(start, rows.num_rows + 1)
        columns = rng.sample(rows.schema.names, rng.randrange(1, 5))
        found = [
            row
            for part in reader.rows(Wanted(start=start, end=end), columns)
            for row in part.to_pylist()
        ]
        assert found == rows.slice(start, end - start).select(columns).to_pylist()


def test_rows_are_read_by_time(store: Store) -> None:
    rows = rows_of(random_rows(3, 80))
    tiered(store, *split(rows, 50))
    reader = read(store)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    rng = random.Random(3)
    for _ in range(20):
        least, most = sorted(rng.sample(times, 2))
        wanted = Wanted(start=0, end=rows.num_rows, min_timestamp_us=least, max_timestamp_us=most)
        found = [at for part in reader.rows(wanted, ["offset"]) for at in part[0].to_pylist()]
        assert found == [at for at, time in enumerate(times) if least <= time <= most]


def test_only_needed_pages_and_files_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.tier.changes.PAGE_FILES", 4)
    system = FaultySystem()
    store = Store(system, str(tmp_path), "s3://bucket")
    rows = rows_of([plain_rows(10, base_offset=10 * n) for n in range(20)])
    manifest = tiered(store, *split(rows, 10))
    assert len(manifest.pages) == 4
    reader = read(store)
    system.calls.clear()
    assert len(list(reader.rows(Wanted(start=83, end=85), ["value"]))) == 1
    opened = [path for operation, path in system.calls if operation == "open_input_file"]
    assert [path.split("/")[-2] for path in opened] == ["pages", "data", "data"]
    system.calls.clear()
    least = TIME_US + 80
    list(reader.rows(Wanted(start=0, end=200, min_timestamp_us=least, max_timestamp_us=least)))
    opened = [path for operation, path in system.calls if operation == "open_input_file"]
    assert [path.split("/")[-2] for path in opened] == ["data", "data"]  # the page is kept


def test_offsets_are_found_by_append_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.tier.changes.PAGE_FILES", 2)
    rows = rows_of(random_rows(5, 80))
    tiered(store, *split(rows, 50))
    reader = read(store)
    times = rows.column("append_time").cast(pa.int64()).to_pylist()
    for time_us in {*times, times[0] - 1, times[-1] + 1, times[40] + 1}:
        expected = next((at for at, time in enumerate(times) if time >= time_us), len(times))
        assert reader.offset_at(time_us) == expected


def test_what_the_tier_does_not_have_is_refused(store: Store) -> None:
    tiered(store, rows_of([plain_rows(10)]))
    reader = read(store)
    for start, end in ((0, 11), (-1, 5), (6, 5)):
        with pytest.raises(OffsetOutOfRange, match="offsets 0 to 10 of queue 3"):
            list(reader.rows(Wanted(start=start, end=end)))
    for columns in ([], ["value", "colour"]):
        with pytest.raises(InvalidRequest, match="has the columns key, value"):
            list(reader.rows(Wanted(start=0, end=5), columns))
    assert newest_pointer(store, "c", QueueKey(QUEUE.topic_id, QueueId(9))) is None


def test_files_are_merged_and_the_rows_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.tier.changes.PAGE_FILES", 4)
    rows = rows_of(random_rows(6, 80))
    size = -(-rows.num_rows // 10)
    manifest = tiered(store, *split(rows, size))
    for start, end in ((size, 3 * size), (8 * size, rows.num_rows)):  # in a page, and in the tail
        change = merge(QueueReader(store, manifest), store, OffsetRange(start, end))
        publish(store, put_change(store, change))
        manifest = change.manifest
        assert all_rows(read(store)).to_pylist() == rows.to_pylist()
    assert len(list(read(store).all_files())) == 8
    with pytest.raises(CorruptTier, match="no whole files of one page"):
        merge(QueueReader(store, manifest), store, OffsetRange(1, size))


def test_a_damaged_file_is_not_merged_away(store: Store, tmp_path: Path) -> None:
    rows = rows_of(random_rows(6, 20))
    manifest = tiered(store, *split(rows, 10))
    path = tmp_path / manifest.files[1].name("c", QUEUE)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptTier):
        merge(QueueReader(store, manifest), store, OffsetRange(0, manifest.files[1].end))


@pytest.mark.parametrize("kind", ["manifests", "pages", "data"])
def test_what_a_pointer_leads_to_is_never_taken_for_right_when_it_is_damaged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("semel.tier.changes.PAGE_FILES", 2)
    tiered(store, *split(rows_of(random_rows(7, 20)), 30))
    rng = random.Random(kind)
    paths = sorted((tmp_path / layout.queue_folder("c", QUEUE) / kind).iterdir())
    for path in paths[:2] + paths[-2:]:
        good = path.read_bytes()
        for _ in range(10):
            bad = bytearray(good)
            bad[rng.randrange(4, len(bad))] ^= 1 << rng.randrange(8)
            for data in (bytes(bad), good[: rng.randrange(len(good))], b""):
                path.write_bytes(data)
                try:
                    found = all_rows(read(store)).to_pylist()
                except CorruptTier:
                    continue
                assert kind == "manifests"  # an older one, which nothing leads to any more
                assert found == rows_of(random_rows(7, 20)).to_pylist()
        path.unlink()
        if kind != "manifests":
            with pytest.raises(ObjectMissing):
                all_rows(read(store))
        path.write_bytes(good)


def test_trimmed_rows_are_gone_for_readers(store: Store) -> None:
    rows = rows_of([plain_rows(10, base_offset=10 * n) for n in range(5)])
    change = trim(tiered(store, *split(rows, 10)), 23)
    publish(store, put_change(store, change))
    reader = read(store)
    assert all_rows(reader)["offset"].to_pylist() == list(range(23, 50))
    assert reader.offset_at(0) == 23


def test_a_lagging_list_gives_an_older_pointer_and_the_right_rows(tmp_path: Path) -> None:
    system = FaultySystem()
    store = Store(system, str(tmp_path), "s3://bucket")
    rows = rows_of([plain_rows(10, base_offset=10 * n) for n in range(3)])
    tiered(store, *split(rows, 10))
    system.hidden = {str(tmp_path / layout.pointer_name("c", QUEUE, 3))}
    assert all_rows(read(store))["offset"].to_pylist() == list(range(20))


def test_a_pointer_of_another_queue_is_refused(store: Store) -> None:
    tiered(store, rows_of([plain_rows(10)]))
    data = store.read(layout.pointer_name("c", QUEUE, 1))
    other = QueueKey(QUEUE.topic_id, QueueId(9))
    store.put(layout.pointer_name("c", other, 1), data)
    with pytest.raises(CorruptTier, match="is the pointer of"):
        newest_pointer(store, "c", other)


# --- crashes and rivals -------------------------------------------------------------------------


class Log:
    """What the group's log decides: a pointer, by compare-and-set of its number."""

    def __init__(self) -> None:
        self.pointer: Pointer | None = None
        self.manifest = no_manifest("c", "orders", QUEUE, 0)

    def decide(self, pointer: Pointer, manifest: Manifest) -> bool:
        if pointer.number != self.manifest.number + 1:
            return False
        self.pointer, self.manifest = pointer, manifest
        return True


def steps(store: Store, log: Log, rows: pa.Table, size: int) -> Iterator[str]:
    """A master that tiers what is missing, step by step; a crash is that nobody goes on."""
    while log.manifest.end < rows.num_rows:
        before = log.manifest
        part = rows.slice(before.end, size)
        entry = put_rows(store, "c", QUEUE, part)
        yield "file"
        change = add_files(before, [entry])
        pointer = put_change(store, change)
        yield "manifest"
        if log.decide(pointer, change.manifest):
            yield "decided"
            publish(store, pointer)
        yield "published"


@pytest.mark.parametrize("seed", range(15))
def test_masters_that_crash_and_overlap_lose_and_repeat_nothing(store: Store, seed: int) -> None:
    """Up to three masters at once, each of which may stop anywhere; each cuts files as it likes.
    Readers look after every step, and garbage is collected as if a day had passed."""
    rng = random.Random(seed)
    rows = rows_of([plain_rows(10, base_offset=10 * n) for n in range(8)])
    log = Log()
    masters: list[Iterator[str]] = []
    while log.manifest.end < rows.num_rows:
        if len(masters) < rng.randrange(1, 4):
            masters.append(steps(store, log, rows, rng.choice((5, 10, 15))))
        master = rng.choice(masters)
        if next(master, None) is None or rng.random() < 0.15:
            masters.remove(master)
        if rng.random() < 0.1 and not masters:
            collect_all(store, log)
        if log.pointer is not None:
            decided = QueueReader(store, read_manifest(store, log.pointer))
            assert all_rows(decided)["offset"].to_pylist() == list(range(log.manifest.end))
        pointer = newest_pointer(store, "c", QUEUE)
        if pointer is not None:
            assert pointer.number <= log.manifest.number
            reader = QueueReader(store, read_manifest(store, pointer))
            assert all_rows(reader).to_pylist() == rows.slice(0, reader.manifest.end).to_pylist()
    assert log.pointer is not None
    publish(store, log.pointer)
    collect_all(store, log)
    assert all_rows(read(store)).to_pylist() == rows.to_pylist()
    left = [each.name for each in store.objects("")]
    named = {file.name("c", QUEUE) for file in read(store).all_files()}
    assert len(left) == len(named) + 4  # and manifest, pointer, identity and clock


def collect_all(store: Store, log: Log) -> None:
    """Collects garbage as a master does, days later."""
    claim(store, "c")
    now_us = clock_us(store, "c") + 1_000 * HOUR_US
    collect(store, "c", QUEUE, lambda: log.pointer, now_us=now_us, policy=GarbagePolicy())


def test_a_collector_that_forgets_the_logs_pointer_is_caught(store: Store) -> None:
    """The planted bug: garbage is decided from the copies alone, and one is missing."""
    rows = rows_of([plain_rows(10, base_offset=10 * n) for n in range(2)])
    log = Log()
    master = steps(store, log, rows, 10)
    assert [next(master) for _ in range(7)][-1] == "decided"  # its copy is not written
    honest, log.pointer = log.pointer, None
    collect_all(store, log)
    assert honest is not None
    with pytest.raises(ObjectMissing):
        read_manifest(store, honest)


@pytest.mark.parametrize("fault", [fails("AWS Error SLOW_DOWN"), loses_the_reply])
@pytest.mark.parametrize("call", range(4))
def test_a_master_goes_on_after_any_call_that_failed(
    tmp_path: Path, call: int, fault: object
) -> None:
    system = FaultySystem()
    store = Store(system, str(tmp_path), "s3://bucket")
    rows = rows_of([plain_rows(10, base_offset=10 * n) for n in range(2)])
    log = Log()
    system.plant("close", *[lambda work: work()] * call, fault)  # type: ignore[arg-type]
    failed = 0
    while log.manifest.end < rows.num_rows:
        try:
            for _ in steps(store, log, rows, 10):
                pass
        except TierUnavailable:
            failed += 1
    assert failed == 1
    assert log.pointer is not None
    publish(store, log.pointer)
    assert all_rows(read(store)).to_pylist() == rows.to_pylist()


# --- whose it is, and its topics ----------------------------------------------------------------


def test_a_place_belongs_to_one_cluster(store: Store) -> None:
    with pytest.raises(TierMisconfigured, match="is no tier"):
        owner_of(store)
    claim(store, "one")
    claim(store, "one")
    assert owner_of(store) == "one"
    with pytest.raises(ForeignTier, match="belongs to cluster 'one', this is 'two'"):
        claim(store, "two")


def test_nodes_of_a_cluster_claim_a_place_at_the_same_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = store.objects

    def later(folder: str) -> list[StoredObject]:
        """Another node claims it between two steps of this one."""
        monkeypatch.undo()
        claim(store, "one")
        return objects(folder)

    monkeypatch.setattr(store, "objects", later)
    claim(store, "one")
    assert owner_of(store) == "one"


def test_a_place_with_other_files_is_refused(store: Store) -> None:
    store.put("photos/1.jpg", b"x")
    with pytest.raises(ForeignTier, match=r"1 objects, such as 'photos/1\.jpg'"):
        claim(store, "one")
    store.delete(["photos/1.jpg"])
    store.put("one/topics/x", b"x")  # the identity alone was lost
    claim(store, "one")


def test_a_tier_of_a_newer_format_is_refused(store: Store) -> None:
    claim(store, "one")
    newer = store.read(layout.IDENTITY).replace(b'"format":1', b'"format":2')
    store.put(layout.IDENTITY, newer)
    with pytest.raises(ForeignTier, match="use a newer Semel"):
        claim(store, "one")


def test_a_rival_that_claims_the_place_at_the_same_moment_is_noticed(
    tmp_path: Path, store: Store
) -> None:
    """Both find the place empty; the second identity counts, and the first cluster stops."""
    system = FaultySystem()
    first = Store(system, str(tmp_path), "s3://bucket")

    def rival(work: object) -> object:
        assert callable(work)
        found = work()
        store.put(layout.IDENTITY, documents.write("identity", {"cluster": "two"}))
        return found

    system.plant("close", rival)
    with pytest.raises((ForeignTier, CorruptTier)):
        claim(first, "one")
    with pytest.raises(ForeignTier):
        claim(first, "one")
    claim(store, "two")


def test_topics_and_queues_are_listed(store: Store) -> None:
    for name, topic_id in (("orders", 7), ("audit", 8), ("orders", 9)):
        put_topic(store, "c", name, TopicId(topic_id))
        put_topic(store, "c", name, TopicId(topic_id))
    store.put("c/topics/readme.txt", b"x")
    store.put("c/topics/0000000000000007/notes/x", b"x")
    for queue in (3, 0):
        store.put(layout.pointer_name("c", QueueKey(TopicId(7), QueueId(queue)), 1), b"x")
    found = topics_of(store, "c")
    assert found == [("audit", 8), ("orders", 7), ("orders", 9)]
    assert queues_of(store, "c", TopicId(7)) == [(7, 0), (7, 3)]
    assert queues_of(store, "c", TopicId(8)) == []
    assert find_topic(found, "audit").topic_id == 8
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        find_topic(found, "orders")
    with pytest.raises(UnknownTopic, match="nothing of topic 'none'"):
        find_topic(found, "none")


def test_a_topics_object_that_tells_of_another_is_refused(store: Store) -> None:
    put_topic(store, "c", "orders", TopicId(7))
    store.put(layout.topic_name("c", 8), store.read(layout.topic_name("c", 7)))
    with pytest.raises(CorruptTier, match="tells of another topic"):
        topics_of(store, "c")


# --- gaps, where messages were compacted away, and null values ----------------------------------


def test_rows_with_gaps_and_null_values_are_read_and_merged(store: Store) -> None:
    """A model: a dict of what is left."""
    rng = random.Random(8)
    rows = rows_of([plain_rows(300)]).combine_chunks()
    kept = sorted(rng.sample(range(5, 290), 120))
    left = rows.take(kept)
    values = [
        None if at % 3 == 0 else value for at, value in zip(kept, left[1].to_pylist(), strict=True)
    ]
    left = left.set_column(1, left.schema.field("value"), pa.array(values, pa.binary()))
    manifest = no_manifest("c", "orders", QUEUE, 0)
    for start, end in ((0, 100), (100, 210), (210, 300)):
        part = left.filter(pa.array([start <= at < end for at in kept]))
        entry = put_rows(store, "c", QUEUE, part, OffsetRange(start, end))
        change = add_files(manifest, [entry])
        manifest = change.manifest
    assert not manifest.dense
    merged = merge(QueueReader(store, manifest), store, OffsetRange(100, 300)).manifest
    for each in (manifest, merged):
        reader = QueueReader(store, each)
        for _ in range(30):
            start = rng.randrange(300)
            end = rng.randrange(start, 301)
            found = [
                row
                for part in reader.rows(Wanted(start=start, end=end), ["value"])
                for row in part.to_pylist()
            ]
            assert found == [
                {"value": value}
                for at, value in zip(kept, values, strict=True)
                if start <= at < end
            ]
        last = left["append_time"].cast(pa.int64())[-1].as_py()
        assert reader.offset_at(last) == kept[0]  # all of one batch, so of one time


def test_the_file_and_the_row_group_of_an_offset_are_found(store: Store) -> None:
    rows = rows_of(random_rows(5, 80))
    manifest = tiered(store, *split(rows, 50))
    reader = read(store)
    for offset in range(0, rows.num_rows, 7):
        file = reader.file_at(offset)
        assert file.start <= offset < file.end
        footer = reader.footer(file)
        group = footer.group_at(offset)
        assert footer.starts[group] <= offset < footer.starts[group + 1]
        wanted = Wanted(start=offset, end=offset + 1)
        (found,) = reader.group(footer, group, ["offset"], wanted)["offset"].to_pylist()
        assert found == offset
    for offset in (-1, manifest.end):
        with pytest.raises(OffsetOutOfRange):
            reader.file_at(offset)


def test_pages_may_be_kept_elsewhere(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.tier.changes.PAGE_FILES", 3)
    rows = rows_of(random_rows(6, 60))
    manifest = tiered(store, *split(rows, 30))
    pages: dict[str, tuple[FileEntry, ...]] = {}
    assert manifest.pages
    for _ in range(2):
        reader = QueueReader(store, manifest, pages)
        assert reader.file_at(0).start == 0
        assert list(pages) == [manifest.pages[0].sha256]
