"""The list of a topic's runs is read as it was written, or it is found to be damaged."""

from __future__ import annotations

import google_crc32c
import pytest

from semel.broker.dedup.id_runs import RunInfo
from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.run_list import (
    RunList,
    decode_end,
    decode_list,
    encode_end,
    encode_list,
    end_key,
    list_key,
)

LIST = RunList(
    [RunInfo(3, 1, 10, 40, 28, 2, 64, 1), RunInfo(4, 0, 40, 45, 5, 1, 8, 1)], 5, 9, b"s" * 16
)
END = 1 << 40


def with_crc(body: bytes) -> bytes:
    return body + int(google_crc32c.value(body)).to_bytes(4, "little")


@pytest.mark.parametrize("runs", [LIST, LIST._replace(runs=[])])
def test_a_list_is_read_as_it_was_written(runs: RunList) -> None:
    assert decode_list(encode_list(runs), 7) == runs


def test_an_end_is_read_as_it_was_written() -> None:
    assert encode_end(END) == with_crc(b"SMIE" + END.to_bytes(8, "little"))
    assert decode_end(encode_end(END), 7) == END


def test_every_damaged_byte_is_noticed() -> None:
    for data, decode in ((encode_list(LIST), decode_list), (encode_end(END), decode_end)):
        for at in range(len(data)):
            with pytest.raises(CorruptIndex, match="of topic 7 is damaged"):
                decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 7)
            with pytest.raises(CorruptIndex, match="of topic 7 is damaged"):
                decode(data[:at], 7)


def test_another_format_is_refused() -> None:
    for data, decode in ((encode_list(LIST), decode_list), (encode_end(END), decode_end)):
        body = data[:-4]
        for other in (b"SMIY" + body[4:], body + b"x"):
            with pytest.raises(CorruptIndex, match="of topic 7 is of another format"):
                decode(with_crc(other), 7)


def test_keys_stand_outside_of_the_runs() -> None:
    topic = (7).to_bytes(8, "big")
    assert (list_key(7), end_key(7)) == (topic + b"m", topic + b"e")
