"""The rules that a node heard last, on its disk: it goes on by them after a restart.

How it works. The file RIGHTS of the data directory has the newest record of rules, and when a
controller last said that it is the newest. It is replaced whole, under a temporary name, and only
its owner can read it. A file that is damaged, or of a newer program, counts as none: then the node
lets only administrators in until it hears the rules.

Format. `docs/formats/hard-state.md`; a test compares its table with the struct below.

Not here: what comes from controllers, and how old rules may be (`rights_copy.py`).
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from semel.broker.log import FileLayer
from semel.broker.log.files import read_file, replace_file
from semel.protos.v1.metadata_pb2 import RightsRecord

logger = logging.getLogger(__name__)

FILE_NAME: Final = "RIGHTS"
MAGIC: Final = b"SMRT"
VERSION: Final = 1
HEADER_STRUCT: Final = struct.Struct("<4sHHQI")
_CRC: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class KeptRights:
    """What the file has."""

    record: RightsRecord
    heard_us: int
    """Wall-clock time at which a controller last said that the record is the newest."""


def encode_rights(kept: KeptRights) -> bytes:
    """The content of the file."""
    payload = kept.record.SerializeToString(deterministic=True)
    head = HEADER_STRUCT.pack(MAGIC, VERSION, 0, kept.heard_us, len(payload))
    return head + payload + _CRC.pack(google_crc32c.value(head + payload))


def decode_rights(raw: bytes) -> KeptRights | None:
    """The inverse of `encode_rights`; None for bytes that are damaged, or of a newer program."""
    if len(raw) < HEADER_STRUCT.size + _CRC.size:
        return None
    body, crc = raw[: -_CRC.size], raw[-_CRC.size :]
    magic, version, _, heard_us, length = HEADER_STRUCT.unpack_from(body)
    payload = body[HEADER_STRUCT.size :]
    whole = magic == MAGIC and version == VERSION and length == len(payload)
    if not whole or _CRC.unpack(crc)[0] != google_crc32c.value(body):
        return None
    try:
        return KeptRights(RightsRecord.FromString(payload), heard_us)
    except DecodeError:
        return None


class RightsFile:
    """The file of one node. BLOCKING; one thread at a time."""

    def __init__(self, directory: Path, files: FileLayer) -> None:
        self._path = directory / FILE_NAME
        self._files = files

    def load(self) -> KeptRights | None:
        """The rules that were saved last; None if there are none that can be read."""
        try:
            raw = read_file(self._files, self._path)
        except OSError as error:
            logger.warning("kept rules cannot be read path=%s error=%s", self._path, error)
            return None
        found = None if raw is None else decode_rights(raw)
        if raw is not None and found is None:
            logger.warning("kept rules are damaged or of a newer program path=%s", self._path)
        return found

    def save(self, kept: KeptRights) -> None:
        """Replaces the file, durably. Raises DiskFull and OSError; the older one counts then."""
        replace_file(self._files, self._path, [encode_rights(kept)], private=True)
