"""TOPIC/QUEUE as an argument of commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    _Name = click.ParamType[tuple[str, int]]
else:
    _Name = click.ParamType


class QueueName(_Name):
    """TOPIC/QUEUE, as messages and tables name a queue."""

    name = "topic/queue"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        found = re.fullmatch(r"(.+)/([0-9]{1,9})", str(value))
        if found is None:
            self.fail(
                f"{value!r} is no queue: write TOPIC/NUMBER, for example orders/3", param, ctx
            )
        return found[1], int(found[2])
