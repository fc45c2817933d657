"""All output of the console: JSON lines, tables, progress, errors.

How it works. A command passes plain dictionaries; `Output` prints them as JSON, one object per
line, or as text for people. Data goes to stdout, everything else (progress, notes, errors) to
stderr. rich is imported only when something is drawn.

Invariants
1. With JSON output, nothing else reaches stdout.
2. An error is one line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

from semel.protos.errors import SemelError
from semel.protos.logs import is_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client.admin.descriptions import LockAge

logger = logging.getLogger(__name__)

PIPE_WIDTH: Final = 240
"""Width in columns of a table that goes into a pipe, so that nothing is cut short."""
BAR_WIDTH: Final = 30
"""Width in columns of a full bar."""
WHOLE: Final = ("address", "role")
"""Columns that are never folded, because people copy from them."""
NOTHING: Final = "–"
"""Shown in a table where there is no value."""


def error(message: str) -> None:
    """Prints one line on stderr; a command whose log is JSON logs it."""
    if is_json():
        logger.error("the command fails reason=%s", message)
    else:
        print("error: " + " ".join(message.split()), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Prints one line on stderr that must not be overlooked, or logs it."""
    if is_json():
        logger.warning("a warning for the operator text=%s", message)
    else:
        print("warning: " + " ".join(message.split()), file=sys.stderr, flush=True)


def os_error(failure: OSError) -> str:
    """The reason that the operating system gave, with the path if there is one."""
    reason = (failure.strerror or str(failure) or type(failure).__name__).lower()
    return f"{failure.filename}: {reason}" if failure.filename else reason


def number(value: int | float | None) -> str:
    """A number for people: 1234567 -> 1,234,567; floats with one digit; None -> a dash."""
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(value: int) -> str:
    """A number of bytes for people: 1.5 MiB."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def ranges(queues: Iterable[tuple[str, int]]) -> str:
    """Queues of topics for people: `orders 0-3,7 · payments 1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, queue in sorted(queues):
        by_topic.setdefault(topic, []).append(queue)
    return " · ".join(f"{topic} {_runs(numbers)}" for topic, numbers in by_topic.items())


def _runs(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def when(time_us: int) -> str:
    """A time in microseconds since the epoch for people, in UTC: 2026-01-31 12:00:00."""
    return iso(time_us, "seconds").replace("T", " ").removesuffix("+00:00")


def member(member_id: str) -> str:
    """A member's id for people; a generated id is shortened to a distinctive part."""
    return f"{member_id[:15]}…" if re.fullmatch(r"member-[0-9a-f]{32}", member_id) else member_id


def brief(milliseconds: int) -> str:
    """A duration in the largest unit that gives at least two: 90000 -> 90 s, 7300000 -> 2 h."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= 2 * unit_ms:
            return f"{milliseconds // unit_ms} {unit}"
    return f"{milliseconds // 1000} s"


def lock_age(lock: LockAge | None) -> str:
    """How long a lock has been held; "over" what the present master has seen of it."""
    if lock is None:
        return ""
    return f"over {brief(lock.held_ms)}" if lock.older else brief(lock.held_ms)


def uncommitted(lock: LockAge | None) -> str:
    """How long what was delivered waits for a commit, and how long it may."""
    if lock is None or not lock.uncommitted_ms:
        return ""
    return f"{brief(lock.uncommitted_ms)} of {brief(lock.lock_ms)}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 topic, 2 topics."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def iso(time_us: int, timespec: str = "milliseconds") -> str:
    """A time in microseconds since the epoch as ISO 8601 in UTC."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return time.isoformat(timespec=timespec)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = ""
) -> RenderableType:
    """A table with columns of numbers aligned to the right; bool cells become yes and no.

    Texts too wide for the terminal are folded, so nothing is cut off.
    """
    from rich import box
    from rich.bar import Bar
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    drawn = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for place, name in enumerate(columns):
        cells = [row[place] for row in body]
        right = bool(cells) and all(isinstance(cell, int | float | None) for cell in cells)
        right = right and not any(isinstance(cell, bool) for cell in cells)
        drawn.add_column(
            name,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or name in WHOLE,
        )
    for row in body:
        drawn.add_row(
            *(cell if isinstance(cell, Text | Bar) else Text(_cell(cell)) for cell in row)
        )
    # Rich folds a table's own title to the width of the table.
    return Group(Text(title, style="bold"), drawn) if title else drawn


def bar(value: int, most: int) -> RenderableType:
    """A bar for a cell of a table: as long as `value` is large, where `most` fills the cell.
    Whatever is not zero shows."""
    from rich.bar import Bar

    least = most / (8 * BAR_WIDTH)  # the eighth of a character
    return Bar(max(most, 1), 0, max(value, least) if value else 0, width=BAR_WIDTH)


def _cell(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float() | None:
            return number(value)
        case _:
            return str(value) or NOTHING


class Progress(Protocol):
    """Progress reports of a long command."""

    def advance(self, amount: int, total: int | None = None) -> None:
        """Reports `amount` more bytes as done; gives `total` if it became known only now."""


class _Silent:
    def advance(self, amount: int, total: int | None = None) -> None:
        pass


Shown: TypeAlias = "tuple[Mapping[str, Any], RenderableType]"
"""One state of something: as JSON, and drawn for people."""


class Output:
    """The output of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def emit(self, value: Mapping[str, Any]) -> None:
        """Prints one JSON object on a line of its own, and flushes it."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()

    def show(self, value: Mapping[str, Any], drawn: RenderableType) -> None:
        """Prints the result: `value` as JSON, or `drawn` for people."""
        if self.as_json:
            self.emit(value)
        else:
            self.draw(drawn)

    def draw(self, *drawn: RenderableType) -> None:
        """Prints for people, on stdout."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else PIPE_WIDTH
        console = Console(width=width, highlight=False)
        for item in drawn:
            console.print(item)

    def watch(self, look: Callable[[], Shown], every_s: float | None) -> int:
        """Shows the result of `look` (JSON and drawing) once, or again and again until Ctrl-C.

        While it watches, a failed look is shown as an error and tried again. Returns the exit
        status.
        """
        if every_s is None:
            value, drawn = look()
            self.show(value, drawn)
            return 0
        try:
            if self.as_json or not sys.stdout.isatty():
                self._watch_lines(look, every_s)
            else:
                self._watch_screen(look, every_s)
        except KeyboardInterrupt:
            return 0

    def _watch_lines(self, look: Callable[[], Shown], every_s: float) -> NoReturn:
        while True:
            try:
                value, drawn = look()
                self.show(value, drawn)
            except SemelError as failure:
                self.show({"error": failure.message}, f"error: {failure.message}")
            sys.stdout.flush()
            time.sleep(every_s)

    def _watch_screen(self, look: Callable[[], Shown], every_s: float) -> NoReturn:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        with Live(
            console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop"
        ) as live:
            while True:
                try:
                    drawn = look()[1]
                except SemelError as failure:
                    drawn = Text(f"error: {failure.message}", "bold red")
                foot = Text(f"{time.strftime('%H:%M:%S')} · every {every_s:g} s · Ctrl-C ends it")
                foot.stylize("dim")
                live.update(Group(drawn, foot), refresh=True)
                time.sleep(every_s)

    @contextmanager
    def progress(self, text: str, total: int | None, *, unit: str = "bytes") -> Iterator[Progress]:
        """Shows a bar on a terminal's stderr while the block runs; `total` is in `unit`."""
        if self.as_json or not sys.stderr.isatty():
            yield _Silent()
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        in_bytes = (DownloadColumn(binary_units=True), TransferSpeedColumn())
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *(in_bytes if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(text, total=total)

            class Bar:
                def advance(self, amount: int, total: int | None = None) -> None:
                    bar.update(task, advance=amount, total=total)

            yield Bar()
