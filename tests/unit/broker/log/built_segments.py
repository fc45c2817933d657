"""Segment files that are put together by hand, and what recovery makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semel.broker.log.recovery import Recovered, recover
from semel.broker.log.segment import (
    ID_BYTES,
    IDS_AT,
    PAGE,
    Segment,
    SegmentHeader,
    decode_id,
    encode_id,
    segment_name,
    write_seal,
)
from tests.kit.disk import SimFiles
from tests.kit.log_entries import frame

ROOT = Path("/node")
CAPACITY = 8


@dataclass
class Built:
    """One segment file, and what stands in it."""

    disk: SimFiles
    header: SegmentHeader
    frames: list[bytes]
    segment: Segment

    @property
    def path(self) -> Path:
        return ROOT / segment_name(self.header.sequence)

    @property
    def image(self) -> bytearray:
        return self.disk.image(self.path)

    def break_frame(self, index: int) -> None:
        self.image[self.segment.place(index)[0] + 60] ^= 1

    def break_id(self, index: int) -> None:
        self.image[IDS_AT + (index - self.header.first_index) * ID_BYTES] ^= 1

    def id_of(self, index: int) -> object:
        slot = index - self.header.first_index
        area = bytes(self.image[IDS_AT : IDS_AT + CAPACITY * ID_BYTES])
        return decode_id(area, slot, self.segment.seed)


def build(
    disk: SimFiles,
    sequence: int,
    first_index: int,
    terms: Sequence[int],
    *,
    previous_term: int = 0,
    lags: Sequence[int] | None = None,
    sealed: int | None = None,
    boot: int | None = None,
    lengths: Sequence[int] = (),
) -> Built:
    """Durable on the disk. `lags` are those of the IDs (1: all before was durable)."""
    header = SegmentHeader(
        sequence=sequence,
        generation=sequence * 11,
        first_index=first_index,
        previous_term=previous_term,
        id_capacity=CAPACITY,
        boot=disk.boot() if boot is None else boot,
    )
    segment = Segment(header, 1 << 20)
    if ROOT not in disk.names_now:
        disk.make_directory(ROOT)
    file = disk.open(ROOT / segment_name(sequence), create=True)
    file.write([header.encode(), header.encode(), bytes(header.frames_at - 2 * PAGE)], 0)
    frames = [
        frame(first_index + at, term, lengths[at] if lengths else 60)
        for at, term in enumerate(terms)
    ]
    for at, (one, term) in enumerate(zip(frames, terms, strict=True)):
        start = segment.end
        file.write([one], start)
        lag = lags[at] if lags else 1
        raw = encode_id(first_index + at, term, start, len(one), lag, segment.seed)
        file.write([raw], IDS_AT + at * ID_BYTES)
        segment.add(len(one))
    if sealed is not None:
        write_seal(file, segment, sealed, segment.end, terms[sealed - 1] if sealed else 0)
    file.sync()
    disk.sync_directory(ROOT)
    return Built(disk, header, frames, segment)


def recovered(disk: SimFiles, checkpoint_index: int = 0, checkpoint_term: int = 0) -> Recovered:
    return recover(disk, ROOT, checkpoint_index, checkpoint_term)


def extent(found: Recovered) -> list[tuple[int, int]]:
    return [(one.first_index, one.end_index) for one in found.segments]
