"""The small language in which messages are chosen: `json.amount > 100 and key == "anna"`. Pure.

How it works. A text is cut into tokens and parsed once, into functions that are called for each
message. Nothing of the text is ever executed, there are no loops and no patterns, so a message
costs at most as much as the text is long.

    expression  or: `a or b`, and: `a and b`, `not a`, `( … )`, a comparison, or a single value
    comparison  ==  !=  <  <=  >  >=  contains  startswith value       "text", 'text', 12.5, true,
    false, null, or a field field       key  value  id  queue  offset  sequence  producer  size
    time  header.NAME  json.a.b[0]

A field that a message does not have is null, and so is `json` of a value that is not JSON. Values
of different kinds are unequal, and neither is less. `time` compares with a time in ISO 8601.

Not here: reading the messages (`browsing.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from semel.protos.errors import InvalidRequest

CHARACTERS_MAX: Final = 500
DEPTH_MAX: Final = 20
JSON_BYTES_MAX: Final = 1 << 20
"""`json` of a longer value is null."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?)"
    r"|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_-]*)"
    r"|(?P<sign>==|!=|<=|>=|<|>|\(|\)|\.|\[|\]))"
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=", "contains", "startswith")
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


class Fields(Protocol):
    """What an expression asks of a message."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def message_id(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes]]: ...
    @property
    def queue(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def timestamp_us(self) -> int: ...


Value = Callable[["_Row"], Any]
"""A part of an expression: texts are bytes of UTF-8, times are microseconds."""


class _Row:
    """One message while it is looked at; its JSON is parsed once."""

    __slots__ = ("_json", "message")

    def __init__(self, message: Fields) -> None:
        self.message = message
        self._json: Any = ...

    @property
    def json(self) -> Any:
        if self._json is ...:
            data = self.message.value
            self._json = None
            if data is not None and len(data) <= JSON_BYTES_MAX:
                try:
                    self._json = json.loads(data)
                except (ValueError, RecursionError):
                    self._json = None
        return self._json


_FIELDS: Final[dict[str, Value]] = {
    "key": lambda row: row.message.key,
    "value": lambda row: row.message.value,
    "id": lambda row: row.message.message_id,
    "queue": lambda row: row.message.queue,
    "offset": lambda row: row.message.offset,
    "sequence": lambda row: row.message.sequence,
    "producer": lambda row: row.message.producer_id,
    "size": lambda row: len(row.message.value or b""),
    "time": lambda row: row.message.timestamp_us,
}


class Expression:
    """A parsed expression."""

    def __init__(self, text: str) -> None:
        """Raises InvalidRequest."""
        if len(text) > CHARACTERS_MAX:
            raise InvalidRequest(
                f"a filter has at most {CHARACTERS_MAX} characters, and this one has {len(text)}"
            )
        self._value = _Parser(text).parse()

    def fits(self, message: Fields) -> bool:
        """The expression holds for a message."""
        return bool(self._value(_Row(message)))


class _Token(NamedTuple):
    kind: str
    """number, text, word, sign or end."""
    text: str
    place: int


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            rest = text[place:].lstrip()
            _refuse(f"{rest[:10]!r} is not understood", end - len(rest.rstrip()))
        assert match.lastgroup is not None
        found.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        place = match.end()
    return [*found, _Token("end", "", end)]


def _refuse(why: str, place: int) -> NoReturn:
    raise InvalidRequest(f"the filter is wrong at character {place + 1}: {why}")


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def parse(self) -> Value:
        found = self._either()
        if self._token.kind != "end":
            _refuse(f"{self._token.text!r} is one thing too many", self._token.place)
        return found

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _is(self, kind: str, text: str) -> bool:
        """Takes the next token if it is this one."""
        if (self._token.kind, self._token.text) == (kind, text):
            self._next += 1
            return True
        return False

    def _either(self) -> Value:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            _refuse(f"it is nested more than {DEPTH_MAX} deep", self._token.place)
        found = self._all()
        while self._is("word", "or"):
            found = _or(found, self._all())
        self._depth -= 1
        return found

    def _all(self) -> Value:
        found = self._negated()
        while self._is("word", "and"):
            found = _and(found, self._negated())
        return found

    def _negated(self) -> Value:
        turned = False
        while self._is("word", "not"):
            turned = not turned
        found = self._comparison()
        return _not(found) if turned else found

    def _comparison(self) -> Value:
        if self._is("sign", "("):
            found = self._either()
            if not self._is("sign", ")"):
                _refuse("a ) is missing", self._token.place)
            return found
        first = self._token
        left = self._operand()
        if self._token.text not in _COMPARISONS or self._token.kind not in ("sign", "word"):
            return left
        sign, second = self._take().text, self._token
        right = self._operand()
        if first.text == "time" and second.kind == "text":
            right = _constant(_time(second))
        elif second.text == "time" and first.kind == "text":
            left = _constant(_time(first))
        return _compared(sign, left, right)

    def _operand(self) -> Value:
        token = self._take()
        match token.kind:
            case "number":
                return _constant(float(token.text) if "." in token.text else int(token.text))
            case "text":
                return _constant(_unquoted(token.text).encode())
            case "word" if token.text in _CONSTANTS:
                return _constant(_CONSTANTS[token.text])
            case "word" if token.text in _FIELDS:
                return _FIELDS[token.text]
            case "word" if token.text == "header":
                path = self._path()
                if len(path) != 1 or not isinstance(path[0], str):
                    _refuse('write header.NAME or header["NAME"]', token.place)
                return _header(path[0])
            case "word" if token.text == "json":
                return _member(self._path())
        known = ", ".join([*_FIELDS, "header.NAME", "json.NAME"])
        _refuse(
            f"{token.text!r} is no field, which are {known}; texts stand in quotes"
            if token.kind == "word"
            else "a value is missing",
            token.place,
        )

    def _path(self) -> list[str | int]:
        """`.a.b[0]["c"]`"""
        found: list[str | int] = []
        while True:
            if self._is("sign", "."):
                token = self._take()
                if token.kind != "word":
                    _refuse("a name is missing behind the dot", token.place)
                found.append(token.text)
            elif self._is("sign", "["):
                token = self._take()
                if token.kind == "text":
                    found.append(_unquoted(token.text))
                elif token.kind == "number" and token.text.isdecimal():
                    found.append(int(token.text))
                else:
                    _refuse('write [0] or ["name"]', token.place)
                if not self._is("sign", "]"):
                    _refuse("a ] is missing", self._token.place)
            else:
                return found


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1], flags=re.S)


def _time(token: _Token) -> int:
    """Microseconds since 1970."""
    try:
        time = datetime.fromisoformat(_unquoted(token.text))
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return round(time.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        _refuse('this is no time such as "2026-01-31T12:00:00Z"', token.place)


def _constant(value: Any) -> Value:
    return lambda row: value


def _or(left: Value, right: Value) -> Value:
    return lambda row: bool(left(row)) or bool(right(row))


def _and(left: Value, right: Value) -> Value:
    return lambda row: bool(left(row)) and bool(right(row))


def _not(value: Value) -> Value:
    return lambda row: not value(row)


def _header(name: str) -> Value:
    return lambda row: next((data for key, data in row.message.headers if key == name), None)


def _member(path: list[str | int]) -> Value:
    def found(row: _Row) -> Any:
        value = row.json
        for step in path:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return _plain(value)

    return found


def _plain(value: Any) -> Any:
    """Texts of JSON as bytes, like every other text here."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _kind(value: Any) -> type:
    """The kind of a value: whole numbers and others are of one, True and False are no numbers."""
    return float if type(value) is int else type(value)


def _compared(sign: str, left: Value, right: Value) -> Value:
    def holds(row: _Row) -> bool:
        one, two = left(row), right(row)
        match sign:
            case "==":
                return _kind(one) is _kind(two) and bool(one == two)
            case "!=":
                return _kind(one) is not _kind(two) or bool(one != two)
            case "contains":
                if isinstance(one, list):
                    return two in [_plain(each) for each in one]
                return isinstance(one, bytes) and isinstance(two, bytes) and two in one
            case "startswith":
                return isinstance(one, bytes) and isinstance(two, bytes) and one.startswith(two)
        if _kind(one) is not _kind(two) or _kind(one) not in (float, bytes):
            return False
        return bool(
            one < two
            if sign == "<"
            else one <= two
            if sign == "<="
            else one > two
            if sign == ">"
            else one >= two
        )

    return holds
