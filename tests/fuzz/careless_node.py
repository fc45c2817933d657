"""A node, as a real process, that forgets one of the checks against bad input: the planted faults
that the checks of an assault must notice.

By hand: `python tests/fuzz/careless_node.py FAULT[,FAULT] --data …`, with the flags of the program.

Not here: nodes on bad disks (`tests/kit/faulty_node.py`).
"""

from __future__ import annotations

import importlib
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.kit.cluster import Cluster


def _columns() -> None:
    """Stores batches whose columns make no sense."""
    from semel.broker.server import produce

    vars(produce)["check_columns"] = lambda *_: None


def _rights() -> None:
    """Lets rules allow everything."""
    from semel.protos.security.rules import Decision, RuledRights

    allowed = Decision(True, None, "planted")
    setattr(RuledRights, "decide", lambda *_: allowed)  # noqa: B010


def _passwords() -> None:
    """Takes every password."""
    from semel.protos.security.passwords import PasswordChecks

    setattr(PasswordChecks, "right", lambda *_: True)  # noqa: B010


def _pages() -> None:
    """Shows its metrics to everybody who speaks TLS."""
    from semel.protos import metrics
    from semel.protos.security import credentials

    make = credentials._context

    def careless(*given: Any) -> ssl.SSLContext:
        context = make(*given)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    vars(credentials)["_context"] = careless
    vars(metrics)["check_peer"] = lambda *_: None


def _errors() -> None:
    """Meets an error of its own whenever somebody asks who he is."""
    from semel.controller.server import ControllerService

    async def failing(*_: Any) -> None:
        raise AssertionError("planted")

    setattr(ControllerService, "WhoAmI", failing)  # noqa: B010


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "columns": _columns,
    "rights": _rights,
    "passwords": _passwords,
    "pages": _pages,
    "errors": _errors,
}


def make_careless(cluster: Cluster, *faults: str) -> None:
    """Lets all nodes of a cluster that has not started have these faults."""
    here = str(Path(__file__).resolve())
    for node in cluster.nodes:
        at = node.command.index("-m")
        program = node.command[at + 1]
        node.command[at : at + 2] = ["-P", here, ",".join(faults), program]


def main() -> None:
    """Becomes the program."""
    faults, program = sys.argv[1:3]
    for fault in faults.split(","):
        FAULTS[fault]()
    sys.argv[1:3] = []
    importlib.import_module(f"{program}.__main__").main(prog_name=program)


if __name__ == "__main__":
    main()
