"""The demo's verdict: each figure, whether it has the value that it must have, and their table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from tools.demo.rebuild import Rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The content of one of Spark's copies."""

    messages: int
    lost: int
    duplicates: int
    invented: int
    digest: str

    @classmethod
    def of(cls, rebuilt: Rebuild) -> Copied:
        """The figures of a file that was rebuilt from the copy."""
        return cls(
            messages=rebuilt.messages,
            lost=rebuilt.lost,
            duplicates=rebuilt.duplicates,
            invented=rebuilt.invented,
            digest=rebuilt.digest(),
        )

    def judge(self, lines: int, digest: str) -> tuple[str, bool]:
        """The text to show, and whether the copy has the whole file exactly once."""
        wrong = {"lost": self.lost, "twice": self.duplicates, "foreign": self.invented}
        said = [f"{count:,} {what}" for what, count in wrong.items() if count]
        if not said and self.digest != digest:
            said = ["another digest"]
        good = not said and self.messages == lines
        return f"{self.messages:,}, {', '.join(said) or 'the same digest'}", good


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All measured figures of one demo."""

    lines: int
    stored: int
    """Number of messages in the topic, by its offsets."""
    delivered: int
    """Number of messages that the consumer group read."""
    lost: int
    duplicates: int
    invented: int
    out_of_order: int
    queues: int
    file_digest: str
    topic_digest: str
    table: Copied
    """The Parquet table into which Spark streamed the topic."""
    copy: Copied
    """The topic into which Spark streamed the topic."""
    verified: bool
    """True when `semel verify --exactly-once` found every node's log equal and without fault, for
    the topic and for its copy."""
    nodes_compared: int
    nodes: int
    killed_master: int
    """The node that was killed while it was master."""
    killed_at: float
    """Share of the lines that were acknowledged at that moment, 0 to 1."""
    next_master: int
    """The node that was master afterwards."""
    term_before: int
    term_after: int
    seconds_without_master: float
    """Seconds from the SIGKILL to the first acknowledgement by another master."""
    loader_killed_at: float
    """Share of the lines that were acknowledged when the loader was killed."""
    skipped: int
    """Number of lines that the second loader found already stored."""
    retried: int
    """Number of messages that were sent again and that a broker recognised as duplicates."""
    seconds: float
    """Duration of the whole load, from the first loader's start to the second one's end."""
    tried: int
    """Number of things that a stranger without rights tried."""
    refused: int
    """Number of them that were refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    name: str
    value: str
    good: bool | None
    """None for a figure that is only shown and cannot be wrong."""


def judge(figures: Figures) -> list[Line]:
    """Every line of the proof, in the order in which it is shown."""
    f = figures

    def equal(value: int, wanted: int) -> tuple[str, bool]:
        return f"{value:,}", value == wanted

    def line(name: str, shown: tuple[str, bool]) -> Line:
        return Line(name=name, value=shown[0], good=shown[1])

    def note(name: str, value: str) -> Line:
        return Line(name=name, value=value, good=None)

    same = f.file_digest == f.topic_digest
    changed = f.next_master != f.killed_master and f.term_after > f.term_before
    return [
        line("lines in the file", (f"{f.lines:,}", f.lines > 0)),
        line("messages stored", equal(f.stored, f.lines)),
        line("messages the group read", equal(f.delivered, f.lines)),
        line("lost", equal(f.lost, 0)),
        line("duplicates", equal(f.duplicates, 0)),
        line("foreign", equal(f.invented, 0)),
        line(
            "order kept",
            (f"in all {f.queues} queues", True)
            if f.out_of_order == 0
            else (f"broken {f.out_of_order:,} times", False),
        ),
        line(
            "master killed",
            (
                f"broker {f.killed_master} at {f.killed_at:.0%}, broker {f.next_master} took over"
                f" (term {f.term_before} → {f.term_after})",
                changed and f.killed_at < 1,
            ),
        ),
        note("seconds without a master", f"{f.seconds_without_master:.2f}"),
        line(
            "loader killed",
            (
                f"at {f.loader_killed_at:.0%}, its successor skipped {f.skipped:,} lines",
                f.loader_killed_at < 1,
            ),
        ),
        note("retries recognised as duplicates", f"{f.retried:,}"),
        note("digest of the file", f.file_digest),
        line("digest of the topic", (f.topic_digest, same)),
        line(
            "logs of all nodes",
            (
                f"{f.nodes_compared} of {f.nodes} verified",
                f.verified and f.nodes_compared == f.nodes,
            ),
        ),
        line(
            "what a stranger tried",
            (f"{f.refused} of {f.tried} refused", f.tried > 0 and f.refused == f.tried),
        ),
        line("Spark's Parquet table", f.table.judge(f.lines, f.file_digest)),
        line("Spark's copy of the topic", f.copy.judge(f.lines, f.file_digest)),
        note("load, failures included", f"{f.seconds:.1f} s"),
    ]


def table(lines: list[Line]) -> Table:
    """The proof as a drawn table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    marks = {True: Text("✓", "bold green"), False: Text("✗", "bold red"), None: Text(" ")}
    for line in lines:
        style = "bold red" if line.good is False else ""
        drawn.add_row(marks[line.good], line.name, Text(line.value, style, overflow="fold"))
    return drawn
