"""Generates docs/events.md from the log calls of all parts and the table of event names.

    python -m tools.events [--check]

How it works. The sources are parsed: a log call is a call of `info`, `warning` and so on of what a
module has assigned from `logging.getLogger` or `Seldom`. Its first argument must be a constant
text, whose phrase the table of names has (`semel.protos.event_names`). The page has one row a name
and part. With `--check` nothing is written, and the exit status is 1 when the committed page is not
what the sources give; a test does the same, and refuses a call without a name.

Not here: how a line of the log is made (`semel.protos.logs`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.protos.event_names import LIBRARY, NAMES, ON_STDOUT
from semel.protos.logs import RESERVED, read_template
from tools import generated_page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "events.md"
PARTS: Final = {
    "broker": "Broker",
    "controller": "Controller",
    "protos": "All programs",
    "client": "Clients, the console and mirrors",
    "web": "Web console",
    "gateway": "Kafka gateway",
    "spark_connector": "Spark",
    "tier": "Tiers",
}
METHODS: Final = ("debug", "info", "warning", "error", "exception", "critical", "log")
MAKERS: Final = ("getLogger", "Seldom")

_STDOUT: Final = " or ".join(f"`{name}`" for name in sorted(ON_STDOUT))
_HEAD: Final = f"""\
# Events in the log

Made by `python -m tools.events` from the log calls of all parts and the names in
`protos/semel/protos/event_names.py`; a test keeps it true.
[operations.md](operations.md#log) says how to get the log as JSON.

A line of a JSON log is one object with `time`, `level`, `process`, `logger`, `event`, `message` and
the fields of its event. `exception` is there when a traceback is, `detail` has what the text names
by no field. What other libraries log, and warnings of Python, are `{LIBRARY}`. The line on
stdout with which a program says that it serves (`--json`) has the event {_STDOUT} and
none of the other keys.

Names and fields stay as they are ([what may change](compatibility.md)); the text may change.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCall:
    """One log call in the sources."""

    part: str
    place: str
    """FILE:LINE."""
    levels: tuple[str, ...]
    template: str | None
    """None if the first argument is no constant text."""

    @property
    def phrase(self) -> str:
        return "" if self.template is None else read_template(self.template).phrase

    @property
    def fields(self) -> list[str]:
        """Names of the fields that it writes."""
        return [] if self.template is None else [*filter(None, read_template(self.template).fields)]

    @property
    def has_detail(self) -> bool:
        """It writes something that has no name."""
        return self.template is not None and "" in read_template(self.template).fields


def log_calls(root: Path = ROOT) -> Iterator[LogCall]:
    """All log calls of all parts."""
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")):
            if "_pb2" not in path.name:
                place = str(path.relative_to(root))
                yield from calls_in(path.read_text(encoding="utf-8"), part, place)


def calls_in(source: str, part: str, place: str) -> Iterator[LogCall]:
    """The log calls of one module."""
    tree = ast.parse(source)
    loggers = {"logging", *_loggers(tree)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and _last_name(node.func.value) in loggers
            and not place.endswith("protos/seldom.py")  # hands on what its callers say
        ):
            given = list(node.args)
            level = [node.func.attr.upper()]
            if node.func.attr == "log":
                level = re.findall(r"logging\.([A-Z]+)", ast.unparse(given.pop(0)))
            text = given[0] if given else None
            constant = isinstance(text, ast.Constant) and isinstance(text.value, str)
            yield LogCall(
                part=part,
                place=f"{place}:{node.lineno}",
                levels=tuple("ERROR" if name == "EXCEPTION" else name for name in level),
                template=str(text.value) if constant and isinstance(text, ast.Constant) else None,
            )


def _loggers(tree: ast.Module) -> Iterator[str]:
    """Names of what a module assigns from a maker of loggers."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _last_name(node.value.func) in MAKERS
        ):
            yield from (_last_name(target) for target in node.targets)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def problems(calls: Iterable[LogCall]) -> list[str]:
    """Mistakes of log calls, and names that no call has."""
    found, used = [], set()
    for call in calls:
        used.add(call.phrase)
        if call.template is None:
            found.append(f"{call.place}: the text of a log call must be a constant")
        elif not call.phrase:
            found.append(f"{call.place}: the text must begin with words: {call.template!r}")
        elif call.phrase not in NAMES:
            found.append(
                f"{call.place}: give {call.phrase!r} a name in protos/semel/protos/event_names.py"
            )
        for name in RESERVED.intersection(call.fields):
            found.append(f"{call.place}: no field may be called {name!r}")
        if len(set(call.fields)) < len(call.fields):
            found.append(f"{call.place}: two fields have one name: {call.template!r}")
    found += [f"no log call says {phrase!r} any more" for phrase in NAMES if phrase not in used]
    return found


def page() -> str:
    """The text of docs/events.md."""
    calls = list(log_calls())
    return _HEAD + "".join(_section(part, calls) for part in PARTS)


def _section(part: str, calls: Iterable[LogCall]) -> str:
    by_name: dict[str, list[LogCall]] = {}
    for call in calls:
        if call.part == part:
            by_name.setdefault(NAMES.get(call.phrase, "?"), []).append(call)
    if not by_name:
        return ""
    lines = [f"\n## {PARTS[part]}\n", "| event | level | text | fields |", "|---|---|---|---|"]
    for name, same in sorted(by_name.items()):
        levels = dict.fromkeys(level for call in same for level in call.levels)
        phrases = dict.fromkeys(call.phrase for call in same)
        fields = dict.fromkeys(field for call in same for field in call.fields)
        if any(call.has_detail for call in same):
            fields["detail"] = None
        columns = (
            f"`{name}`",
            ", ".join(levels) or "varies",
            "; or: ".join(phrases),
            ", ".join(f"`{field}`" for field in fields),
        )
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(generated_page.run(PAGE, page, "tools.events", __doc__))
