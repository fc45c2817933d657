"""Manifests, pages and pointers: one spelling, strict reading, and changes that keep every row."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from semel.protos.ids import QueueId, TopicId
from semel.tier import (
    Change,
    CorruptTier,
    FileEntry,
    ForeignTier,
    Manifest,
    add_files,
    merge_files,
    trim,
)
from semel.tier.manifest import (
    PAGE_FILES,
    PageEntry,
    decode,
    decode_page,
    decode_pointer,
    encode_page,
    pointer_to,
)
from tests.kit.format_tables import tables
from tests.kit.tier_facts import some_facts
from tests.unit.tier.entries import entry, manifest_of


def files_of(manifest: Manifest, pages: dict[PageEntry, bytes]) -> list[FileEntry]:
    paged = [file for page in manifest.pages for file in page_files(page, pages[page])]
    return [*paged, *manifest.files]


@cache
def page_files(page: PageEntry, data: bytes) -> tuple[FileEntry, ...]:
    return decode_page("page", page, data)


@pytest.mark.parametrize("files", [1, 2, PAGE_FILES, PAGE_FILES + 1, 2 * PAGE_FILES + 5])
def test_a_manifest_is_read_as_it_was_written(files: int) -> None:
    manifest, pages = manifest_of(files)
    pointer, data = pointer_to(manifest)
    assert decode("m", data) == manifest
    assert decode("m", data).encode() == data
    assert decode_pointer("p", pointer.encode()) == pointer
    found = files_of(manifest, pages)
    assert [file.start for file in found] == [10 * number for number in range(files)]
    assert manifest.number == files
    assert len(manifest.files) <= PAGE_FILES


def test_a_manifest_of_many_files_stays_small() -> None:
    """It has 100,000 files, which are not added one by one."""
    page = encode_page([entry(10 * n, 10 * n + 10) for n in range(PAGE_FILES)], "")[0]
    pages = tuple(
        dataclasses.replace(
            page,
            start=page.end * number,
            end=page.end * (number + 1),
            first_append_us=page.end * number,
            last_append_us=page.end * number + page.last_append_us,
        )
        for number in range(100_000 // PAGE_FILES)
    )
    end = pages[-1].end
    tail = tuple(
        dataclasses.replace(entry(end + 10 * n, end + 10 * n + 10), chunk_crcs="01234567" * 120)
        for n in range(PAGE_FILES)
    )
    manifest = dataclasses.replace(
        manifest_of(1)[0],
        start=0,
        end=tail[-1].end,
        pages=pages,
        files=tail,
    )
    manifest.check("m")
    assert len(manifest.encode()) < 500_000


def test_manifests_form_a_chain() -> None:
    first, _ = manifest_of(1)
    second = add_files(first, [entry(10, 20)]).manifest
    assert first.previous_sha256 == ""
    assert second.previous_sha256 == pointer_to(first)[0].sha256


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 0},
        {"number": 1},
        {"previous_sha256": ""},
        {"start": -1},
        {"start": 10},
        {"end": 29},
        {"end": 31},
        {"files": (entry(0, 10), entry(11, 30))},
        {"files": (entry(0, 10), entry(9, 30))},
        {"files": (entry(0, 10), entry(10, 10), entry(10, 30))},
        {"files": ()},
        {"files": (entry(0, 30), entry(0, 30))},
        {"files": (dataclasses.replace(entry(0, 10), last_append_us=11), entry(10, 30))},
        {"files": (dataclasses.replace(entry(0, 30), sha256="../../secret"),)},
    ],
    ids=str,
)
def test_a_manifest_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    good, _ = manifest_of(3)
    decode("m", good.encode())
    with pytest.raises(CorruptTier):
        decode("m", dataclasses.replace(good, **wrong).encode())


@pytest.mark.parametrize("document", ["manifest", "pointer", "page"])
def test_a_document_with_another_field_type_or_kind_is_refused(document: str) -> None:
    manifest, _ = manifest_of(3)
    pointer, data = pointer_to(manifest)
    page, page_data = encode_page(manifest.files, "")
    read: dict[str, tuple[bytes, Any]] = {
        "manifest": (data, decode),
        "pointer": (pointer.encode(), decode_pointer),
        "page": (page_data, lambda name, data: decode_page(name, _entry_for(page, data), data)),
    }
    good, reader = read[document]
    reader("x", good)
    whole = json.loads(good)
    for name in whole:
        text: tuple[object, ...] = () if name in ("cluster", "topic", "nonce") else ("x",)
        for value in (None, -(1 << 64), [1], {}, *text):
            with pytest.raises((CorruptTier, ForeignTier)):
                reader("x", json.dumps({**whole, name: value}).encode())
        with pytest.raises(CorruptTier):
            reader("x", json.dumps({key: whole[key] for key in whole if key != name}).encode())
    with pytest.raises(CorruptTier, match="unknown fields"):
        reader("x", json.dumps({**whole, "more": 1}).encode())
    with pytest.raises(ForeignTier, match="newer"):
        reader("x", json.dumps({**whole, "format": 2}).encode())
    for length in range(len(good)):
        with pytest.raises(CorruptTier):
            reader("x", good[:length])


def _entry_for(page: PageEntry, data: bytes) -> PageEntry:
    """An entry whose digest is right, so that what comes behind the digest is tested."""
    from semel.tier.documents import sha256_of

    return dataclasses.replace(page, length=len(data), sha256=sha256_of(data))


def test_a_damaged_page_is_refused() -> None:
    page, data = encode_page(manifest_of(3)[0].files, "")
    bad = data.replace(b"1000", b"1001", 1)
    with pytest.raises(CorruptTier, match="SHA-256"):
        decode_page("page", page, bad)
    with pytest.raises(CorruptTier, match="not whole"):
        decode_page("page", page, data[:-1])
    with pytest.raises(CorruptTier, match="other files"):
        decode_page("page", dataclasses.replace(page, files=2), data)


@pytest.mark.parametrize("seed", range(10))
def test_any_changes_keep_every_offset_in_exactly_one_file(seed: int) -> None:
    """A model: the set of offsets that the tier should have."""
    rng = random.Random(seed)
    manifest, pages = manifest_of(1, start=rng.choice((0, 500)))
    start, end = manifest.start, manifest.end
    for _ in range(40):
        match rng.choice(("add", "add", "add", "trim", "merge")):
            case "add":
                count = rng.choice((1, 1, 3, PAGE_FILES))
                added = [entry(end + 10 * n, end + 10 * n + 10) for n in range(count)]
                change, end = add_files(manifest, added), end + 10 * count
            case "trim":
                start = min(start + rng.choice((0, 3, 10, 57, 600)), end)
                change = trim(manifest, start)
            case _:
                page = rng.choice([None, *manifest.pages])
                files = manifest.files if page is None else page_files(page, pages[page])
                if len(files) < 2:
                    continue
                at = rng.randrange(len(files) - 1)
                to = rng.randrange(at + 1, len(files))
                merged = entry(files[at].start, files[to].end, length=9_000)
                change = merge_files(manifest, page, files, merged)
        assert change.manifest.number == manifest.number + 1
        manifest = decode("m", change.manifest.encode())
        pages |= dict(change.pages)
        found = files_of(manifest, pages)
        assert (manifest.start, manifest.end) == (start, end)
        covered = [(file.start, file.end) for file in found]
        assert all(left[1] == right[0] for left, right in itertools.pairwise(covered))
        if covered:
            assert covered[0][0] <= start < covered[0][1] or covered[0][0] <= start
            assert covered[-1][1] == end
        else:
            assert start == end


def test_a_trim_beyond_the_end_leaves_a_manifest_that_goes_on_there() -> None:
    manifest, _ = manifest_of(3)
    emptied = trim(manifest, 100).manifest
    assert (emptied.start, emptied.end, emptied.files) == (100, 100, ())
    assert add_files(emptied, [entry(100, 110)]).manifest.start == 100


def test_a_file_that_does_not_follow_is_a_bug_of_the_caller() -> None:
    manifest, _ = manifest_of(3)
    with pytest.raises(AssertionError, match="follow each other"):
        add_files(manifest, [entry(31, 40)])


def test_the_documents_are_those_of_the_page() -> None:
    described = tables("tier.md", "Manifests")
    manifest, page, paged, file, pointer, topic, facts, deleted, identity = (
        [row["field"] for row in table] for table in described
    )
    common = {"format", "kind"}
    made, _ = manifest_of(3)
    whole_pointer, data = pointer_to(made)
    assert set(json.loads(data)) - common == set(manifest)
    assert [field.name for field in dataclasses.fields(PageEntry)] == page
    assert set(json.loads(encode_page(made.files, "")[1])) - common == set(paged)
    assert [field.name for field in dataclasses.fields(FileEntry)] == file
    assert set(json.loads(whole_pointer.encode())) - common == set(pointer)
    assert (topic, identity) == (["cluster", "topic", "topic_id"], ["cluster", "folder"])
    assert set(json.loads(some_facts().encode())) - common == set(facts)
    assert deleted == ["cluster", "topic_id", "queue"]


def test_no_two_attempts_give_the_same_name() -> None:
    """Under an old one a new object could be deleted as the old one that a collector has listed."""
    manifest, _ = manifest_of(PAGE_FILES)
    one_more, all_in_one = entry(manifest.end, manifest.end + 10), entry(0, manifest.end)
    changes: list[Callable[[], Change]] = [
        lambda: trim(manifest, 5),
        lambda: add_files(manifest, [one_more]),
        lambda: merge_files(manifest, None, manifest.files, all_in_one),
    ]
    for change in changes:
        first, second = change(), change()
        assert pointer_to(first.manifest)[0].sha256 != pointer_to(second.manifest)[0].sha256
        for left, right in zip(first.pages, second.pages, strict=True):
            assert left[0].sha256 != right[0].sha256


def test_ids_of_topics_above_2_53_survive() -> None:
    made = dataclasses.replace(
        manifest_of(1)[0], topic_id=TopicId((1 << 63) - 1), queue_id=QueueId((1 << 32) - 1)
    )
    assert decode("m", made.encode()) == made
