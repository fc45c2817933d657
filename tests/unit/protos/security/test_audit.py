"""The audit log: every line is written or counted, and files rotate."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from semel.protos.security import audit
from semel.protos.security.audit import AuditLog


def lines(*paths: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_every_line_is_json_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, lambda: 1_000.5)
    log.write({"who": "user:alice\nx", "result": "denied", "count": 3, "long": "x" * 5_000})
    log.close()
    (line,) = lines(path)
    assert line["time"] == "1970-01-01T00:16:40.500+00:00"
    assert (line["who"], line["result"], line["count"]) == ("user:alice\nx", "denied", 3)
    assert len(line["long"]) == audit.VALUE_CHARACTERS_MAX
    assert log.dropped == 0


def test_a_log_that_is_opened_again_goes_on_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(3):
        log = AuditLog(path, lambda: 0.0)
        log.write({"number": number})
        log.close()
    assert [line["number"] for line in lines(path)] == [0, 1, 2]


def test_files_rotate_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, lambda: 0.0, file_bytes_max=200, files_kept=2)
    for number in range(20):
        log.write({"number": number})
    log.close()
    files = [tmp_path / name for name in ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    kept = [line["number"] for line in lines(*files)]
    assert kept == list(range(20 - len(kept), 20))
    assert all(file.stat().st_size <= 200 for file in files)


def test_lines_without_room_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "WAITING_MAX", 2)
    let_go = threading.Event()
    write = audit._File.write

    def slowly(self: audit._File, line: str) -> bool:
        let_go.wait(10)
        return write(self, line)

    monkeypatch.setattr(audit._File, "write", slowly)
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, lambda: 0.0)
    for number in range(10):
        log.write({"number": number})
    assert log.dropped >= 7
    let_go.set()
    log.close()
    assert len(lines(path)) + log.dropped == 10


def test_lines_that_the_disk_does_not_take_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: audit._File, record: object) -> bool:
        raise OSError(28, "No space left on device")

    log = AuditLog(tmp_path / "audit.jsonl", lambda: 0.0)
    monkeypatch.setattr(audit._File, "shouldRollover", full)
    log.write({"number": 1})
    log.close()
    assert log.dropped == 1
