"""Generates the synchronous API from the asyncio one: `python tools/unasync.py [--check]`.

How it works. Both halves of the API stand on one core and differ in little more than `async` and
`await`. So only `api/aio*.py` is written by hand; the tool drops `async` and `await`, replaces the
names of `NAMES` and the texts of docstrings that a half lists, and has ruff sort the imports,
remove those that are not used any more, and format the result. Where the halves really differ the
source says so by a comment:

    statement  # asyncio only           the statement that begins on this line is left out; inside
                                        of a statement, such as among parameters, the line is
    # sync: code                        the code stands here in the synchronous half
    statement  # async in both halves   the statement that begins on this line keeps its `async`

The generated modules are committed, so that readers, type checkers and installed wheels need no
tool. With `--check` nothing is written, and the exit status is 1 when a committed module is not
what its source gives.

Not here: what both halves do alike (`client/semel/client/api/`: `connect.py`, `telling.py`,
`transaction_work.py`, `sql_transaction.py`), which is written by hand once.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
API: Final = Path("client/semel/client/api")
WIDTH: Final = 100
ASYNC_ONLY: Final = "# asyncio only"
SYNC_LINE: Final = "# sync: "
ASYNC_ALWAYS: Final = "# async in both halves"

NAMES: Final[Mapping[str, str]] = {
    "AsyncAccessAdmin": "AccessAdmin",
    "AsyncAdmin": "Admin",
    "AsyncClient": "Client",
    "AsyncClusterAdmin": "ClusterAdmin",
    "AsyncConsumer": "Consumer",
    "AsyncIterator": "Iterator",
    "AsyncMessageAdmin": "MessageAdmin",
    "AsyncProducer": "Producer",
    "AsyncProducerTransaction": "ProducerTransaction",
    "AsyncReader": "Reader",
    "AsyncStage": "Stage",
    "AsyncTable": "Table",
    "AsyncTopicAdmin": "TopicAdmin",
    "AsyncTransaction": "Transaction",
    "AsyncTransactions": "Transactions",
    "_AsyncPulling": "_Pulling",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "aio_access_admin": "sync_access_admin",
    "aio_admin": "sync_admin",
    "aio_cluster_admin": "sync_cluster_admin",
    "aio_message_admin": "sync_message_admin",
    "aio_reading": "sync_reading",
    "aio_table": "sync_table",
    "aio_topic_admin": "sync_topic_admin",
    "aio_transactions": "sync_transactions",
    "await_ready": "wait_ready",
    "await_run": "run",
    "await_telling": "run_telling",
    "connect_async": "connect",
}
"""Replacements of whole words, in code, docstrings and comments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One generated module."""

    source: str
    """File name of the asyncio module in `API`."""
    target: str
    docstring: str
    """Docstring of the generated module; a note on its origin is added."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts of docstrings that differ in the synchronous half. Each key occurs in exactly one
    docstring, where line ends count as blanks."""


HALVES: Final = (
    Half(
        source="aio.py",
        target="sync.py",
        docstring="""\
The synchronous API: `Client`, `Producer`.

How it works. Every object is a thin front: it hands coroutines to the I/O thread and blocks for
the result. Sending and receiving messages do not wait for that thread: messages go through the
producer's intake and come out of the feed's line.

All objects may be shared between threads, except that one reader or consumer belongs to one thread
at a time. After a fork, objects of the parent raise Closed in the child.
""",
        texts={
            "Use it as an async context manager, or await `close`.": (
                "Use it as a context manager, or call `close`."
            ),
            "without a consumer group; connects when it is entered or first used.": (
                "without a consumer group."
            ),
            "It joins when it is entered or first used. Raises": "Raises",
            "Raises UnknownTopic (with the future),": "Raises UnknownTopic,",
            "Never blocks and takes the message even when the buffer is full: `await drain()` now"
            ' and then to be slowed down to the cluster\'s pace (with `buffer_full="raise"` it'
            " raises BufferFull instead).": (
                "Blocks while the buffer is full, and for the topic's route before its first"
                " message."
            ),
            "(await sent).offset": "sent.result().offset",
            "Awaits room in the buffer. Cancelled in between, a part of them is on its way.": (
                "Blocks while the buffer is full."
            ),
            "Returns when everything sent before is stored.": (
                "Blocks until everything sent before is stored."
            ),
        },
    ),
    Half(
        source="aio_reading.py",
        target="sync_reading.py",
        docstring="""\
The synchronous `Reader` and `Consumer`: iterate, `poll` or `poll_arrow`.

How it works. Messages are taken from the feed and decoded in the calling thread; only when none is
there does it wait, and only commits and the like are handed to the I/O thread.

One object belongs to one thread at a time.
""",
        texts={
            "`async with consumer.transaction(connection): …`": (
                "`with consumer.transaction(connection): …`"
            ),
            "One transaction of an asyncio consumer;": "One transaction of a synchronous consumer;",
        },
    ),
    Half(
        source="aio_table.py",
        target="sync_table.py",
        docstring="""\
The synchronous `Table`: a topic as a mapping that follows it.

How it works. A reader reads the topic from its start and goes on. Whoever looks at the table first
takes in what has arrived, without waiting; nothing runs in the background but the reader's
prefetching.

One object belongs to one thread at a time.

Not here: which message of a key counts (`core/table_rows.py`).
""",
    ),
    Half(
        source="aio_transactions.py",
        target="sync_transactions.py",
        docstring="""\
Transactions as programs use them, with blocking calls.

`producer.transaction(id)` is for one program; `client.transactions` for writers in many processes
with one that commits.

Not here: what happens (`api/transaction_work.py`, `transactions/commit.py`).
""",
        texts={
            "Use it as an async context manager.": "Use it as a context manager.",
            "Stages one message, awaiting room in the buffer. Raises": (
                "Stages one message. Blocks while the buffer is full. Raises"
            ),
            "Returns once everything is staged,": "Blocks until everything is staged,",
        },
    ),
    Half(
        source="aio_admin.py",
        target="sync_admin.py",
        docstring="""\
The synchronous `Admin`: all administrative calls, put together from their parts.

Not here: the calls, by subject (`api/sync_topic_admin.py`, `api/sync_access_admin.py`,
`api/sync_message_admin.py`, `api/sync_cluster_admin.py`).
""",
        texts={"each returns once it is done.": "each blocks until it is done."},
    ),
    Half(
        source="aio_topic_admin.py",
        target="sync_topic_admin.py",
        docstring="""\
The part of `Admin` about topics, their queues, consumer groups and producers.

Not here: what the calls do (`admin/calls.py`, `admin/verify.py`).
""",
        texts={
            "`on_progress` is called on this loop. Raises UnknownTopic, and Unavailable when a"
            " group has no master.": (
                "`on_progress` is called in this thread. Raises UnknownTopic, and Unavailable when"
                " a group has no master."
            ),
        },
    ),
    Half(
        source="aio_access_admin.py",
        target="sync_access_admin.py",
        docstring="""\
The part of `Admin` about who may do what, how much of it, and who logs in.

Not here: what the calls do (`admin/rights.py`, `admin/quotas.py`).
""",
    ),
    Half(
        source="aio_message_admin.py",
        target="sync_message_admin.py",
        docstring="""\
The part of `Admin` about single messages, delayed messages and dead letters.

Not here: what the calls do (`admin/`, `dead_letters/`).
""",
        texts={
            "`on_progress` is called on this loop. Raises UnknownTopic; ProducerFenced when another"
            " run of the topic has begun; LockLost when the lock of the run was lost and no broker"
            " can tell why: repeat it.": (
                "`on_progress` is called in this thread. Raises UnknownTopic; ProducerFenced when"
                " another run of the topic has begun; TimedOut, and LockLost when the lock of the"
                " run was lost and no broker can tell why: repeat it."
            ),
        },
    ),
    Half(
        source="aio_cluster_admin.py",
        target="sync_cluster_admin.py",
        docstring="""\
The part of `Admin` about the cluster: its state, nodes, restores, upgrades.

Not here: what the calls do (`admin/nodes.py`, `admin/restore.py`, `admin/tier_restore.py`).
""",
    ),
)


def to_sync(source: str, half: Half) -> str:
    """The synchronous module before formatting.

    Raises ValueError for a text of the half that does not stand in exactly one docstring, and for
    a comment that looks like a mark and is none.
    """
    names = re.compile(rf"\b({'|'.join(NAMES)})\b")
    code = _without_async(_with_texts(source, half))
    code = names.sub(lambda match: NAMES[match[0]], code)
    return _with_header(code, half)


def _with_texts(source: str, half: Half) -> str:
    """The source with the docstrings' texts of the synchronous half."""
    lines = source.splitlines()
    unused = dict(half.texts)
    for node in reversed(_docstrings(ast.parse(source))):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        old = "\n".join(lines[first : last + 1])
        new = old
        for text, replacement in half.texts.items():
            changed = _replaced(new, text, replacement)
            if changed != new:
                if unused.pop(text, None) is None:
                    raise ValueError(f"{half.source}: {text!r} stands in several docstrings")
                new = changed
        lines[first : last + 1] = new.split("\n")
    if unused:
        raise ValueError(f"{half.source}: no docstring has {next(iter(unused))!r}")
    return "\n".join(lines) + "\n"


def _with_header(code: str, half: Half) -> str:
    """The code with the module docstring of the synchronous half instead of its own."""
    end = ast.parse(code).body[0].end_lineno or 1
    origin = f"Generated from `api/{half.source}` by `tools/unasync.py`: change that module."
    return f'"""{half.docstring}\n{origin}\n"""\n' + "".join(code.splitlines(True)[end:])


def _docstrings(tree: ast.Module) -> list[ast.Expr]:
    """All strings that are statements, except the module's docstring, in order."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and node is not tree.body[0]
    ]
    return sorted(found, key=lambda node: node.lineno)


def _replaced(docstring: str, text: str, replacement: str) -> str:
    """The docstring with `text` replaced in each paragraph; changed paragraphs are rewrapped."""
    indent = docstring[: len(docstring) - len(docstring.lstrip())]
    closing = f'\n{indent}"""'
    ends_alone = docstring.endswith(closing)
    paragraphs = docstring.removesuffix(closing).split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        if ">>> " in paragraph:
            paragraphs[number] = paragraph.replace(text, replacement)
            continue
        flat = " ".join(paragraph.split())
        if text in flat:
            paragraphs[number] = textwrap.fill(
                flat.replace(text, replacement),
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n\n".join(paragraphs) + (closing if ends_alone else "")


def _without_async(source: str) -> str:
    """The source without `async` and `await`, as its marks direct."""
    extents = _extents(ast.parse(source))
    lines = source.splitlines()
    dropped: set[int] = set()
    kept: set[int] = set()
    blanked: list[tuple[int, int, int]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token in tokens:
        line = token.start[0]
        if token.type != tokenize.COMMENT or not token.string.startswith(("# async", "# sync")):
            continue
        if token.string in (ASYNC_ONLY, ASYNC_ALWAYS):
            marked = range(line, extents.get(line, line) + 1)
            (dropped if token.string == ASYNC_ONLY else kept).update(marked)
        elif not token.string.startswith(SYNC_LINE):
            raise ValueError(f"line {line}: {token.string!r} is no mark")
    for token, following in pairwise(tokens):
        line, column = token.start
        if token.type == tokenize.NAME and token.string in ("async", "await") and line not in kept:
            assert following.start[0] == line, f"line {line}: the word stands at a line's end"
            blanked.append((line, column, following.start[1]))
        if token.type == tokenize.COMMENT and token.string == ASYNC_ALWAYS:
            blanked.append((line, column, len(lines[line - 1])))
    for line, start, end in reversed(blanked):
        lines[line - 1] = lines[line - 1][:start] + lines[line - 1][end:]
    return "".join(f"{line}\n" for line in _finished(lines, dropped))


def _extents(tree: ast.Module) -> dict[int, int]:
    """For each line the last line of the longest statement that begins on it."""
    extents: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            last = node.end_lineno or node.lineno
            extents[node.lineno] = max(last, extents.get(node.lineno, last))
    return extents


def _finished(lines: Sequence[str], dropped: set[int]) -> Iterator[str]:
    """The remaining lines, with the code of the synchronous half and its examples."""
    for number, line in enumerate(lines, 1):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if number in dropped:
            continue
        if bare.startswith(SYNC_LINE):
            yield indent + bare.removeprefix(SYNC_LINE)
        elif bare.startswith((">>> ", "... ")):
            yield re.sub(r"\b(async|await) ", "", line)
        else:
            yield line.rstrip()


def formatted(code: str, name: Path) -> str:
    """The code formatted by ruff, with sorted imports and without unused ones."""
    ruff = [sys.executable, "-m", "ruff"]
    where = ["--quiet", "--stdin-filename", str(ROOT / name), "-"]
    for command in (["check", "--fix-only", "--select", "I,F401"], ["format"]):
        done = subprocess.run(
            [*ruff, *command, *where], input=code, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"ruff refuses what {name} would be: {done.stderr}")
        code = done.stdout
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the generator; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(arguments).check
    stale = 0
    for half in HALVES:
        source, target = API / half.source, API / half.target
        code = formatted(to_sync((ROOT / source).read_text(), half), target)
        if not check:
            (ROOT / target).write_text(code)
        elif not (ROOT / target).exists() or (ROOT / target).read_text() != code:
            print(f"{target} is stale: run `python tools/unasync.py`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
