"""The log of a process on stderr: as text, or as JSON with one object a line.

How it works. A line of the log is a constant template and arguments: `"learner added node=%d"`. The
JSON has `event`, a stable name for the template (`event_names.py`), and an entry for each
conversion of the template with its argument, whose type is kept: `"node": 4`. Nothing is read out
of the finished text. A conversion without `name=` in front of it goes into `detail`.

Invariants
1. With JSON every line that Python writes on stderr is one JSON object, in ASCII: also an exception
   that nobody caught, a warning, and the reason for which a process ends.
2. Formatting raises nothing: a log call that is wrong shows its template.

Rejected: python-json-logger, which takes the fields from `extra` of each call; what is left of it
behind a subclass that takes them from the template is the call of `json.dumps`. structlog, for
which every call would change.

Not here: the audit log (`security/audit.py`), the names (`event_names.py`).
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import click

from semel.protos.event_names import LIBRARY, UNNAMED, name_of

logger = logging.getLogger(__name__)

TEXT: Final = "text"
JSON: Final = "json"
OWN_LOGGERS: Final = ("semel.", "pyspark_semel.")
RESERVED: Final = frozenset(
    {"time", "level", "process", "logger", "event", "message", "exception", "detail"}
)
"""Keys of every line, which no template may use as the name of a field."""

F = TypeVar("F", bound="Callable[..., Any]")

_CONVERSION: Final = re.compile(
    r"(?:(?P<name>\w+)=)?%(?:(?P<percent>%)|[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?[a-zA-Z])"
)


class Template(NamedTuple):
    """What a log call's template says about its lines."""

    phrase: str
    """The words in front of the first field."""
    fields: tuple[str, ...]
    """A name for each argument; empty for one without."""


@functools.lru_cache(maxsize=2_048)
def read_template(template: str) -> Template:
    """Returns the phrase and the fields of a log call's template."""
    found = [match for match in _CONVERSION.finditer(template) if match["percent"] is None]
    end = found[0].start() if found else len(template)
    phrase = template[:end].rstrip(" :,;(")
    return Template(phrase, tuple(match["name"] or "" for match in found))


class JsonLines(logging.Formatter):
    """Makes a JSON object of a record."""

    def __init__(self, process: str) -> None:
        """`process` says on each line who writes, such as `broker-1`."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
        }
        template = read_template(str(record.msg))
        if record.name.startswith(OWN_LOGGERS):
            line["event"] = name_of(template.phrase) or UNNAMED
        else:
            line["event"] = LIBRARY
        line["message"] = _text_of(record)
        details = []
        for name, value in zip(template.fields, _arguments(record), strict=False):
            if name and name not in line:
                line[name] = _plain(value)
            else:
                details.append(_plain(value))
        if details:
            line["detail"] = details[0] if len(details) == 1 else details
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_format_option(envvar: str | None = None) -> Callable[[F], F]:
    """A decorator that adds `--log-format` to a command."""
    return click.option(
        "--log-format",
        type=click.Choice([TEXT, JSON]),
        default=TEXT,
        show_default=True,
        envvar=envvar,
        help="Form of the log: lines of text, or one JSON object a line with stable event names,"
        " which docs/events.md lists.",
    )


def set_up(
    log_format: str, *, process: str, level: int | str = logging.INFO, text: str | None = None
) -> None:
    """Has this process write its log to stderr in a format. `text` is the format of lines of text;
    None leaves these to Python's default, which shows warnings."""
    if log_format != JSON:
        if text is not None:
            logging.basicConfig(level=level, stream=sys.stderr, format=text)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    sys.excepthook = _on_uncaught
    sys.unraisablehook = _on_unraisable
    threading.excepthook = _on_thread_failed


def is_json() -> bool:
    """Whether this process writes its log as JSON."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler.formatter, JsonLines) for handler in handlers)


def tell_end(reason: str) -> None:
    """Writes the reason for which the process ends: `error: REASON`, or the same as JSON."""
    if is_json():
        logger.critical("the process ends reason=%s", reason)
    else:
        print(f"error: {reason}", file=sys.stderr, flush=True)


def reason_in(line: str) -> str | None:
    """Returns the reason in a line that `tell_end` has written; None for any other line."""
    if line.startswith("error: "):
        return line.removeprefix("error: ")
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    ended = name_of("the process ends")
    return str(found.get("reason", "")) if found.get("event") == ended else None


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:26] + "Z"


def _arguments(record: logging.LogRecord) -> Iterable[object]:
    arguments = record.args
    return arguments if isinstance(arguments, tuple) else () if not arguments else (arguments,)


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)


def _plain(value: object) -> Any:
    """Returns a value as JSON has it, and as text if it has no such."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return _shown(value)


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _on_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logger.critical("the program failed", exc_info=(kind, error, trace))


def _on_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    error = unraisable.exc_value
    logger.error("an exception was ignored in=%s", unraisable.object, exc_info=error)


def _on_thread_failed(failed: threading.ExceptHookArgs) -> None:
    name = None if failed.thread is None else failed.thread.name
    logger.error("a thread failed name=%s", name, exc_info=failed.exc_value)
