"""Values as people see them: nothing that acts is left in, and never more than a screen takes."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.web.decoding import (
    BODY_BYTES,
    HEX_BYTES,
    LINE_CHARACTERS,
    forms,
    harmless,
    is_json,
    laid_out,
    line,
    show,
)


def acts(text: str) -> list[str]:
    """Characters that do something instead of being shown."""
    return [
        one
        for one in text
        if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") and one not in "\n\t"
    ]


@given(st.text())
def test_no_character_that_acts_is_left(text: str) -> None:
    assert acts(harmless(text)) == []
    assert harmless("a\u202eb\x1b\U000e0041") == "a⟨U+202E⟩b␛⟨U+E0041⟩"


@given(st.binary(max_size=2_000))
def test_a_line_is_one_line_and_short(data: bytes) -> None:
    text = line(data)
    assert len(text) <= LINE_CHARACTERS + 1
    assert "\n" not in text
    assert "\x1b" not in text


def test_a_line_says_what_is_there() -> None:
    assert line(None) == "null"
    assert line(b"") == ""
    assert line(b"a\n  b") == "a b"
    assert line(b"\n\n") == "␊␊"
    assert line(b"\x1b[31mred") == "␛[31mred"
    assert line(b"\xff\xfea") == "\\xff\\xfea"
    assert line("ä".encode() * 1_000) == "ä" * LINE_CHARACTERS + "…"
    assert line("€".encode() * 60) == "€" * 60


@pytest.mark.parametrize(
    ("data", "best"),
    [
        (b'{"a": 1}', "json"),
        (b" [1, 2]", "json"),
        (b"12", "text"),
        (b"{not json", "text"),
        (b"[" * 200_000, "text"),
        (b"plain", "text"),
        (b"\xff\x00", "hex"),
        ("ä".encode() * BODY_BYTES, "text"),
        (b"a" * (BODY_BYTES - 1) + "€€".encode(), "text"),
    ],
)
def test_the_best_form_is_first(data: bytes, best: str) -> None:
    assert forms(data)[0] == best
    for form in forms(data):
        assert acts(show(data, form).text) == []


def test_ten_megabytes_are_cut_in_every_form() -> None:
    for data in (b"<" * (10 << 20), b"\xff" * (10 << 20), b"[" + b"1," * (5 << 20) + b"1]"):
        assert not is_json(data)
        for form in ("text", "json", "hex"):
            shown = show(data, form)
            assert len(shown.text) <= 5 * BODY_BYTES
            assert shown.left_bytes >= len(data) - BODY_BYTES
    assert show(b"a" * 20_000, "hex").left_bytes == 20_000 - HEX_BYTES


def test_hex_has_offset_numbers_and_text() -> None:
    data = bytes(range(0x38, 0x4A))
    assert show(data, "hex").text.splitlines() == [
        "00000000  38 39 3a 3b 3c 3d 3e 3f  40 41 42 43 44 45 46 47  89:;<=>?@ABCDEFG",
        "00000010  48 49                                             HI",
    ]


def test_json_keeps_what_the_sender_wrote() -> None:
    text = '{"big":12345678901234567890.10,"twice":1,"twice":2,"e":[],"o":{},"s":"a\\"{b,}: c"}'
    assert laid_out(text) == (
        '{\n  "big": 12345678901234567890.10,\n  "twice": 1,\n  "twice": 2,\n  "e": [],\n'
        '  "o": {},\n  "s": "a\\"{b,}: c"\n}'
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_json_that_is_laid_out_means_the_same(value: object) -> None:
    for text in (
        json.dumps(value),
        json.dumps(value, indent=3),
        json.dumps(value, ensure_ascii=False),
    ):
        assert json.loads(laid_out(text)) == value
