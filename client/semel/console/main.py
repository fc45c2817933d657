"""The `semel` command itself: the list of its nouns, and the form of an error.

How it works. Every noun has a module of its own that is imported when the noun is called, so that
`semel --version` or a completion need not import gRPC and Arrow. `main` runs click without its own
error handling and turns every failure into one line on stderr.

Invariants
1. Exit status 0 success, 1 failure, 2 wrong usage, 3 not authenticated, 4 denied, 5 violated
   (`verify`), 130 interrupted, 141 the reader of the output went away (both as a shell shows SIGINT
   and SIGPIPE); an error is one line, `error: what happened, to what, what to do`. A reader that
   went away is no error.
2. With `--json` stdout has nothing but JSON, also when the call fails.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import Any, Final, NoReturn

import click

from semel.console import render
from semel.protos.errors import PermissionDenied, SemelError, Unauthenticated

_COMMANDS: Final = {
    "up": ("semel.console.up:up", "A whole cluster on this machine; Ctrl-C stops it."),
    "broker": ("semel.console.nodes:broker", "One broker node."),
    "controller": ("semel.console.nodes:controller", "One controller."),
    "topic": ("semel.console.topic:topic", "Create, list, describe, alter and delete topics."),
    "queue": ("semel.console.queue:queue", "A topic's queues: list them, split one, move one."),
    "produce": ("semel.console.produce:produce", "Send lines or JSON objects to a topic."),
    "consume": ("semel.console.consume:consume", "Read messages from a topic."),
    "message": ("semel.console.message:message", "Show one stored message in full, or find it."),
    "delay": ("semel.console.delay:delay", "Delayed messages: list, count, cancel them."),
    "group": ("semel.console.group:group", "Consumer groups, their members and their lag."),
    "dlq": ("semel.console.dlq:dlq", "Dead letters: look at them, and bring them back."),
    "cluster": ("semel.console.cluster:cluster", "The cluster's state; growing broker groups."),
    "doctor": ("semel.console.doctor:doctor", "Find what is wrong with a cluster, and what to do."),
    "config": ("semel.console.config:config", "Settings of running nodes: show and change them."),
    "mirror": ("semel.console.mirror:mirror", "Copy topics to another cluster; fail over to it."),
    "node": ("semel.console.node:node", "Broker nodes: list, replace, remove, drain."),
    "producer": ("semel.console.producer:producer", "Named producers, and one message's fate."),
    "transaction": (
        "semel.console.transaction:transaction",
        "What programs store all or nothing: list, describe, abort.",
    ),
    "acl": ("semel.console.acl:acl", "Rules of who may do what: grant, revoke, list, check."),
    "quota": ("semel.console.quota:quota", "How much users and topics may have: set, list, show."),
    "audit": ("semel.console.audit:audit", "Who did what, and what was refused."),
    "whoami": ("semel.console.acl:whoami", "Who you are for the cluster."),
    "verify": (
        "semel.console.verify:verify",
        "Prove from every node's log that each message is stored once.",
    ),
    "security": ("semel.console.security:security", "TLS: a CA, certificates, who has which."),
    "bench": ("semel.console.bench:bench", "Put load on a running cluster, and measure its speed."),
    "web": ("semel.web.command:web", "Serve the web console: the cluster in a browser."),
    "kafka-gateway": ("semel.gateway.command:kafka_gateway", "Serve Kafka's clients."),
    "completion": ("semel.console.completion:completion", "Print shell completion code."),
}
"""Name -> (module:attribute, one line of help)."""

_STATUS: Final[dict[type[SemelError], int]] = {Unauthenticated: 3, PermissionDenied: 4}
"""Exit statuses of errors that a program may want to tell from other failures."""

READER_GONE: Final = 128 + 13
"""Exit status when the reader of the output went away: what a shell shows for SIGPIPE."""


class _ReaderGone(Exception):
    """A BrokenPipeError under a name of its own: click would end the process for that one."""


class _Nouns(click.Group):
    """A group whose commands are imported when they are called."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Raises _ReaderGone: this prints help."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def invoke(self, ctx: click.Context) -> Any:
        """Raises _ReaderGone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"semel {importlib.metadata.version('semel')}")
        ctx.exit()


@click.group(
    cls=_Nouns,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def semel(ctx: click.Context) -> None:
    """Semel, a replicated message broker that stores every message exactly once."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit status; an error becomes one line on stderr."""
    try:
        result: Any = semel.main(args=arguments, prog_name="semel", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        return _usage_error(error)
    except click.ClickException as error:
        render.error(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except SemelError as error:
        render.error(error.message or type(error).__name__)
        return _STATUS.get(type(error), 1)
    except (_ReaderGone, BrokenPipeError):
        # Nobody is left to tell; what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except OSError as error:
        render.error(render.os_error(error))
        return 1
    return result if isinstance(result, int) else 0


def _usage_error(error: click.UsageError) -> int:
    message = error.format_message().rstrip(".")
    where = error.ctx.command_path if error.ctx is not None else "semel"
    render.error(f"{message[:1].lower()}{message[1:]}: see `{where} --help`")
    return 2


def main() -> NoReturn:
    """Entry point of the `semel` command.

    gRPC's C core also logs messages below errors to stderr (a server that went away is INFO),
    between our own lines. It reads the variable that forbids this only once, when it is loaded.
    Nodes may say all of it: it is there that gRPC says why a TLS handshake failed.
    """
    if sys.argv[1:2] not in (["broker"], ["controller"]):
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(run())
