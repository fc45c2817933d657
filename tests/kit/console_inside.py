"""The console called in this process: as the command would run, without starting an interpreter."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from semel.console.main import run


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a call."""

    status: int
    out: str
    errors: str


class InsideConsole:
    """`semel` against one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: str) -> Done:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = run([*arguments, "--bootstrap", self.bootstrap])
        return Done(status, out.getvalue(), errors.getvalue())

    def json(self, *arguments: str, status: int = 0) -> Any:
        """The one line of a call that ends with `status`."""
        done = self(*arguments, "--json")
        assert done.status == status, done.errors
        [line] = done.out.splitlines()
        return json.loads(line)

    def fails(self, *arguments: str, status: int = 1) -> str:
        """The one line of error of a call that must fail."""
        done = self(*arguments)
        assert (done.status, done.out) == (status, ""), done.errors
        [line] = done.errors.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")
