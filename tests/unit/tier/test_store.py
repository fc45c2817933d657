"""The store over a folder, and over one that fails as object stores do."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from semel.protos.errors import SemelError
from semel.tier import (
    CorruptTier,
    ObjectMissing,
    Store,
    StoreLimits,
    TierDenied,
    TierFull,
    TierMisconfigured,
    TierUnavailable,
    open_store,
)
from semel.tier.deadlines import HUNG_MAX
from semel.tier.hdfs import hdfs_file_system
from semel.tier.store import _joined
from semel.tier.store_errors import translate
from tests.kit.faulty_store import FaultySystem, fails, loses_the_reply


def faulty(tmp_path: Path, **limits: float) -> tuple[Store, FaultySystem]:
    system = FaultySystem()
    return Store(system, str(tmp_path), "s3://bucket", StoreLimits(**limits)), system  # type: ignore[arg-type]


def folder(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def test_a_folder_stores_lists_and_deletes(tmp_path: Path) -> None:
    store = folder(tmp_path)
    assert store.objects("a") == []
    store.put("a/b/one", b"1" * 10)
    store.put("a/two", b"")
    assert store.read("a/b/one") == b"1" * 10
    found = store.objects("a")
    assert [(each.name, each.length) for each in found] == [("a/b/one", 10), ("a/two", 0)]
    assert abs(found[0].modified_us / 1e6 - (tmp_path / "a/b/one").stat().st_mtime) < 1
    assert store.folders("a") == ["a/b"]
    assert store.folders("nowhere") == []
    assert store.delete(["a/two", "a/three", "a/b/one"]) == 2
    assert store.objects("") == []


def test_a_store_that_is_opened_again_has_what_was_put(tmp_path: Path) -> None:
    folder(tmp_path).put("x", b"1")
    folder(tmp_path).put("x", b"2")
    assert folder(tmp_path).read("x") == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]  # nothing temporary is left


def test_ranges_are_read_in_few_requests(tmp_path: Path) -> None:
    data = os.urandom(4 << 20)
    store = folder(tmp_path)
    store.put("x", data)
    ranges = [(5, 10), (3 << 20, 7), (0, 3), (100, 0), (len(data) - 5, 5)]
    assert store.read_ranges("x", ranges) == [data[at : at + size] for at, size in ranges]
    assert store.read_ranges("x", []) == []
    assert store.read_ranges("x", [(len(data) - 2, 5)]) == [data[-2:]]
    joined = [(start, end) for start, end, _ in _joined(ranges)]
    assert joined == [(0, 100), (3 << 20, len(data))]


def test_what_is_missing_is_said_by_name(tmp_path: Path) -> None:
    store = folder(tmp_path)
    for read in (store.read, lambda name: store.read_ranges(name, [(0, 1)])):
        with pytest.raises(ObjectMissing, match="a/b"):
            read("a/b")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://host/x", "the scheme of a tier is one of s3, gs, hdfs, file"),
        ("/var/tier", "the scheme"),
        ("", "the scheme"),
        ("file://host/x", "absolute path"),
        ("file:///", "absolute path"),
        ("file:///no/such/folder", "there is no folder '/no/such/folder'; create it first"),
        ("file:///a/../b", "relative part"),
        ("file:///tmp?region=x", "unknown option 'region'"),
        ("s3:///x", "names no bucket"),
        ("s3://bucket/x?reqion=x", "unknown option 'reqion'"),
        ("s3://bucket/x?scheme=ftp", "http or https"),
        ("s3://bucket/x#y", "unknown option 'y'"),
        ("hdfs:///x", "names no host"),
        ("hdfs://host:port/x", "host, port and a folder"),
        ("hdfs://host:8020/", "host, port and a folder"),
    ],
)
def test_a_wrong_url_is_refused_in_one_line(url: str, text: str) -> None:
    with pytest.raises(TierMisconfigured, match=r"^[^\n]*$") as caught:
        open_store(url)
    assert text in caught.value.message


def test_a_secret_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(TierMisconfigured) as caught:
        open_store("s3://KEY:SECRET@bucket/x")
    assert "SECRET" not in str(caught.value)
    assert "s3://bucket/x" in str(caught.value)


def test_hdfs_without_its_package_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native.fsspec", None)
    with pytest.raises(TierMisconfigured, match=r"install semel\[hdfs\]"):
        open_store("hdfs://127.0.0.1:1/x")


def test_an_hdfs_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(TierUnavailable, match=r"looking for hdfs://127.0.0.1:1/x"):
        open_store("hdfs://127.0.0.1:1/x", StoreLimits(call_s=0.5))


def test_objects_of_hdfs_have_an_age() -> None:
    """The collector deletes by it; without one everything would be old."""
    system = hdfs_file_system("127.0.0.1", 1, "hdfs://127.0.0.1:1")
    status = SimpleNamespace(
        **dict.fromkeys(("path", "permission", "owner", "group"), "/x"),
        **dict.fromkeys(("length", "access_time"), 1),
        isdir=False,
        modification_time=1_700_000_000_123,
    )
    found = system.handler._create_file_info("/x", system.handler.fs._convert_file_status(status))
    assert found.mtime_ns // 1_000_000 in (1_700_000_000_122, 1_700_000_000_123)


def test_an_interrupted_write_to_a_folder_leaves_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder(tmp_path)

    def power_fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("semel.tier.store._sync", power_fails)
    with pytest.raises(TierFull):
        store.put("x", b"1")
    (left,) = store.objects("")
    assert left.name.startswith("x.tmp-")
    with pytest.raises(ObjectMissing):
        store.read("x")


def test_what_is_stored_in_a_folder_is_synced_with_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("semel.tier.store._sync", synced.append)
    folder(tmp_path).put("a/b/x", b"1")
    assert synced[0].name.startswith("x.tmp-")
    assert synced[1:] == [tmp_path / "a/b", tmp_path / "a", tmp_path]


def test_on_hdfs_an_object_is_renamed_into_its_place(tmp_path: Path) -> None:
    system = FaultySystem(type_name="hdfs")
    store = Store(system, str(tmp_path), "hdfs://host/x")
    store.put("a/x", b"1")
    store.put("a/x", b"1")
    moves = [call for call in system.calls if call[0] == "move"]
    assert moves == [("move", str(tmp_path / "a/x"))]  # what was right was not touched
    store.put("a/x", b"2")  # a crash had left something else
    assert store.read("a/x") == b"2"
    system.plant("move", fails("the name node is gone"))
    with pytest.raises(TierUnavailable):
        store.put("a/y", b"3")
    assert [each.name.split(".tmp-")[0] for each in store.objects("a")] == ["a/x", "a/y"]
    with pytest.raises(ObjectMissing):
        store.read("a/y")


# --- a store that fails -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AWS Error ACCESS_DENIED during PutObject operation", TierDenied),
        ("AWS Error INVALID_ACCESS_KEY_ID during HeadObject", TierDenied),
        ("AWS Error SIGNATURE_DOES_NOT_MATCH during HeadObject", TierDenied),
        ("AWS Error UNKNOWN (HTTP status 400): ExpiredToken Message: The provided", TierDenied),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject: No response body.", TierDenied),
        ("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload", TierMisconfigured),
        ("AWS Error SLOW_DOWN during PutObject", TierUnavailable),
        ("AWS Error NETWORK_CONNECTION during PutObject: curlCode: 28", TierUnavailable),
        ("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left", TierFull),
        ("Cannot write: DSQuotaExceeded", TierFull),
        ("[Errno 13] Failed to open. Detail: [errno 13] Permission denied", TierDenied),
        ("something new", TierUnavailable),
    ],
)
def test_every_error_of_a_store_says_who_can_help(
    tmp_path: Path, text: str, kind: type[SemelError]
) -> None:
    store, system = faulty(tmp_path)
    system.plant("close", fails(text))
    with pytest.raises(kind) as caught:
        store.put("x", b"1")
    assert "writing s3://bucket/x" in caught.value.message
    assert kind.retriable == (kind is TierUnavailable)
    store.put("x", b"1")


def test_an_upload_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    store, system = faulty(tmp_path)
    system.writes_cut_to = 3
    with pytest.raises(CorruptTier, match="other bytes came back than the 5 written"):
        store.put("x", b"12345")
    system.writes_cut_to = None
    store.put("x", b"12345")


def test_an_upload_that_comes_back_wrong_is_noticed(tmp_path: Path) -> None:
    store, system = faulty(tmp_path)
    system.flips = 2
    with pytest.raises(CorruptTier):
        store.put("x", b"12345")


def test_a_broken_upload_is_not_published(tmp_path: Path) -> None:
    """Arrow publishes what was sent so far when a stream is closed, also after an error."""
    store, system = faulty(tmp_path)
    system.plant("write", fails("AWS Error NETWORK_CONNECTION"))
    with pytest.raises(TierUnavailable):
        store.put("x", b"12345")
    assert ("close", f"{tmp_path}/x") not in system.calls
    assert store.objects("") == []


def test_a_write_whose_reply_is_lost_may_be_repeated(tmp_path: Path) -> None:
    store, system = faulty(tmp_path)
    system.plant("close", loses_the_reply)
    with pytest.raises(TierUnavailable):
        store.put("x", b"12345")
    assert store.read("x") == b"12345"
    store.put("x", b"12345")


def test_a_store_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    store, system = faulty(tmp_path, call_s=0.05)
    system.hangs = threading.Event()
    began = time.monotonic()
    for _ in range(HUNG_MAX):
        with pytest.raises(TierUnavailable, match=r"no answer within 0\.05 s"):
            store.read("x")
    hung = len(system.calls)
    with pytest.raises(TierUnavailable, match="calls hang already"):
        store.read("x")
    assert len(system.calls) == hung  # a dead store costs no more threads than that
    assert time.monotonic() - began < 30
    system.hangs.set()
    (tmp_path / "x").write_bytes(b"1")
    while True:  # as soon as the calls that hung are over
        try:
            assert store.read("x") == b"1"
            break
        except TierUnavailable:
            assert time.monotonic() - began < 60


def test_errors_of_the_tier_are_not_translated_again() -> None:
    error = TierDenied("no")
    assert translate(error, "what") is error
