"""Bytes of messages as text for people: harmless, and never more than a screen can take. Pure.

How it works. Bytes that are UTF-8 are text; everything else is shown as hexadecimal numbers, or as
text with escapes where a line is all there is room for. Characters that would act instead of being
shown (control characters such as the ESC of terminals, marks that reverse the direction of writing)
are replaced by signs or by their numbers. JSON is laid out anew from its own characters, so
numbers, their digits and repeated names stay as the sender wrote them.

Not here: HTML. Templates escape every text, and nothing here is markup.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Final, Literal

LINE_CHARACTERS: Final = 160
"""Length of a value in a list."""
BODY_BYTES: Final = 64 << 10
"""Bytes of a value that its own page shows; a download has all."""
HEX_BYTES: Final = 8 << 10
JSON_BYTES_MAX: Final = 1 << 20
"""Longer values are not looked at as JSON."""
NULL: Final = "null"

_SUSPECT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f]|[^\x00-\x7f]")
"""Characters that may act on what is around them; tabs and newlines are not among them."""
_ACTING: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of those that do: control, format, halves of pairs, ends of lines and paragraphs."""
_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')

Form = Literal["text", "json", "hex"]


@dataclass(frozen=True, slots=True)
class Shown:
    """One way to show a value."""

    form: Form
    text: str
    left_bytes: int
    """Bytes of the value that are not shown."""


def harmless(text: str) -> str:
    """Returns the text with a sign in the place of each character that acts."""
    return _SUSPECT.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"⟨U+{code:04X}⟩" if unicodedata.category(found[0]) in _ACTING else found[0]


def line(data: bytes | None, characters: int = LINE_CHARACTERS) -> str:
    """Returns a value in one line of at most so many characters, for lists."""
    if data is None:
        return NULL
    head = data[: 4 * characters]
    text = _utf8(head, whole=len(head) == len(data))
    if text is None:
        text = head.decode("utf-8", "backslashreplace")
    text = harmless(" ".join(text.split()) if text.strip() else text.replace("\n", "␊"))
    cut = len(text) > characters or len(head) < len(data)
    return f"{text[:characters]}…" if cut else text


def id_text(data: bytes | None) -> str:
    """Returns a message id as a form sends it back; empty for none, and for one that is no text."""
    return "" if data is None else _utf8(data, whole=True) or ""


def forms(data: bytes) -> list[Form]:
    """Returns the ways to show a value, the best one first."""
    if _utf8(data[:BODY_BYTES], whole=len(data) <= BODY_BYTES) is None:
        return ["hex", "text"]
    return ["json", "text", "hex"] if is_json(data) else ["text", "hex"]


def show(data: bytes, form: Form) -> Shown:
    """Returns a value in one form; in that of text if it is not JSON."""
    if form == "hex":
        head = data[:HEX_BYTES]
        return Shown("hex", _dump(head), len(data) - len(head))
    head = data[:BODY_BYTES]
    if form == "json" and is_json(data):
        text = laid_out(data.decode())
        if len(text) <= 4 * BODY_BYTES:
            return Shown("json", harmless(text), 0)
        return Shown("json", harmless(laid_out(_cut(head))), len(data) - len(head))
    text_or_none = _utf8(head, whole=len(head) == len(data))
    text = head.decode("utf-8", "backslashreplace") if text_or_none is None else text_or_none
    return Shown("text", harmless(text), len(data) - len(head))


def is_json(data: bytes) -> bool:
    """The value is a JSON object or list."""
    if len(data) > JSON_BYTES_MAX or data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


def laid_out(text: str) -> str:
    """Returns JSON with a line for each member, from its own characters."""
    parts: list[str] = []
    depth = 0
    before = ""
    for found in _PIECE.finditer(text):
        piece = found[0]
        if piece in ("}", "]"):
            depth = max(0, depth - 1)
            parts.append(piece if before in ("{", "[") else f"\n{'  ' * depth}{piece}")
        else:
            if before in ("{", "[", ","):
                parts.append(f"\n{'  ' * depth}")
            parts.append(": " if piece == ":" else piece)
            if piece in ("{", "["):
                depth = min(depth + 1, 50)
        before = piece
    return "".join(parts)


def _utf8(head: bytes, *, whole: bool) -> str | None:
    """Returns the text of the first bytes of a value; None if it is not UTF-8."""
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(head) - 3 or error.reason != "unexpected end of data":
            return None
        return head[: error.start].decode()


def _cut(head: bytes) -> str:
    return head.decode("utf-8", "ignore")


def _dump(data: bytes) -> str:
    """Returns offset, numbers and ASCII, 16 bytes a line."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        numbers = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {numbers:<48}  {text}")
    return "\n".join(lines)
