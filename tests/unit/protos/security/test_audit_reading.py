"""Pages of an audit log that is written and rotates meanwhile: each line once, newest first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel.protos.errors import InvalidRequest
from semel.protos.security import audit_reading
from semel.protos.security.audit import FILES_KEPT, AuditLog
from semel.protos.security.audit_reading import AuditPage, Wanted, read_page
from semel.protos.security.audit_service import AuditService
from semel.protos.v1 import audit_pb2


def written(path: Path, *numbers: int, file_bytes_max: int = 1 << 20, **more: str) -> None:
    """Writes a line for each number, as a node does."""
    log = AuditLog(path, lambda: 0.0, file_bytes_max=file_bytes_max)
    for number in numbers:
        log.write({"number": number, **more})
    log.close()


def numbers(page: AuditPage) -> list[int]:
    return [json.loads(line)["number"] for _, line in page.lines]


def walk(path: Path, wanted: Wanted) -> list[int]:
    """All pages one after the other."""
    found, position = list[int](), ""
    while True:
        page = read_page(path, position, wanted)
        found += numbers(page)
        assert page.end or page.position != position
        position = page.position
        if page.end:
            return found


@pytest.mark.parametrize("limit", [1, 7, 500])
@pytest.mark.parametrize("block", [50, 64 << 10])
def test_pages_go_through_all_files_backwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, block: int
) -> None:
    monkeypatch.setattr(audit_reading, "_BLOCK", block)
    path = tmp_path / "audit.jsonl"
    written(path, *range(40), file_bytes_max=500)
    assert len(list(tmp_path.iterdir())) > 3
    assert walk(path, Wanted(limit=limit)) == list(range(39, -1, -1))


def test_a_walk_goes_on_where_it_was_although_the_log_rotates(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, *range(30), file_bytes_max=500)
    first = read_page(path, "", Wanted(limit=10))
    assert numbers(first) == list(range(29, 19, -1))
    written(path, *range(30, 60), file_bytes_max=500)
    assert numbers(read_page(path, first.position, Wanted(limit=5))) == list(range(19, 14, -1))
    newest = read_page(path, "", Wanted(limit=3))
    assert numbers(newest) == [59, 58, 57]
    again = read_page(path, newest.begin, Wanted(limit=3))
    assert numbers(again) == [59, 58, 57]  # a page that nobody used is got again


def test_a_place_in_a_file_that_is_gone_is_the_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, *range(10), file_bytes_max=500)
    position = read_page(path, "", Wanted(limit=8)).position
    written(path, *range(10, 10 + 10 * (FILES_KEPT + 2)), file_bytes_max=500)
    page = read_page(path, position, Wanted())
    assert (page.lines, page.end) == ((), True)


def test_only_what_matches_is_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 1, 2, who="user:Anna", result="denied")
    written(path, 3, who="user:ben", result="done")
    size = path.stat().st_size
    page = read_page(path, "", Wanted(search="ANNA"))
    assert (numbers(page), page.scanned_bytes, page.end) == ([2, 1], size, True)
    assert numbers(read_page(path, "", Wanted(result="done"))) == [3]
    assert numbers(read_page(path, "", Wanted(search="anna", result="done"))) == []
    assert numbers(read_page(path, "", Wanted(search="who"))) == []  # names of fields do not count


def test_work_for_a_page_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_reading, "SCANNED_BYTES_MAX", 300)
    path = tmp_path / "audit.jsonl"
    written(path, *range(50))
    page = read_page(path, "", Wanted(search="nobody"))
    assert (page.lines, page.end) == ((), False)
    assert 300 <= page.scanned_bytes < 400
    assert walk(path, Wanted(search="nobody")) == []


def test_what_is_no_line_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_reading, "_BLOCK", 64)
    monkeypatch.setattr(audit_reading, "_LINE_BYTES_MAX", 1_000)
    path = tmp_path / "audit.jsonl"
    path.write_bytes(
        b'{"number": 1}\n[]\n\xff\xfe\n' + b"x" * 5_000 + b'\n\n{"number": 2}\n{"number": 3'
    )
    assert walk(path, Wanted()) == [2, 1]  # the last one is being written
    assert read_page(tmp_path / "none", "", Wanted()) == AuditPage()
    (tmp_path / "begun").write_bytes(b'{"number"')
    assert read_page(tmp_path / "begun", "", Wanted()) == AuditPage()


@pytest.mark.parametrize("position", ["x", "x:", "x:-1", "x:²", "00000000:" + "9" * 30])
def test_what_is_no_position_is_refused(tmp_path: Path, position: str) -> None:
    with pytest.raises(InvalidRequest, match="is no position"):
        read_page(tmp_path / "audit.jsonl", position, Wanted())


async def test_the_call_answers_its_own_cluster_and_checks_the_caller(tmp_path: Path) -> None:
    path, checked = tmp_path / "audit.jsonl", list[object]()
    written(path, 1, 2)
    service = AuditService(path, lambda: "c", checked.append)
    with pytest.raises(InvalidRequest, match="belongs to cluster c"):
        await service.ReadAudit(audit_pb2.ReadAuditRequest(cluster_id="d"), "who")
    request = audit_pb2.ReadAuditRequest(cluster_id="c", limit=1)
    reply = await service.ReadAudit(request, "who")
    assert checked == ["who"]
    assert [json.loads(line.line)["number"] for line in reply.lines] == [2]
    assert (reply.kept, reply.end, reply.position) == (True, False, reply.lines[0].position)
    reply = await AuditService(None, lambda: "c").ReadAudit(request, "who")
    assert (reply.kept, reply.end, len(reply.lines)) == (False, True, 0)
