"""A consumer process that kills itself at a chosen step of a commit that retries and rejects.

    python -m tests.kit.crashing_consumer BOOTSTRAP TOPIC GROUP STEP

Every third message is rejected, the others count as processed. STEP is `copies` (nothing is done
for the copies yet), `record` (the record that announces them is durable, and no copy is), `commit`
(the copies are durable, the progress is not), or `never`: then it reads to the end, prints what it
processed, and returns. `forgetful` is like `never`, with a planted bug: the consumer does not look
for what an earlier owner has copied.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from semel.client import RetryPolicy, connect
from semel.client.consumer.commits import Commits
from semel.client.dead_letters import retrying
from semel.client.dead_letters.relay import Relay
from semel.client.dead_letters.retrying import Retrying


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def sort_out(bootstrap: str, topic: str, group: str, step: str) -> list[int]:
    """Runs to the step, or until nothing comes any more; returns what it processed."""
    armed = [False]
    processed: list[int] = []
    real = {
        "copies": (Retrying, "publish"),
        "commit": (Commits, "store"),
        "record": (Relay, "send"),
    }
    if step == "forgetful":

        async def nothing(*_: Any) -> list[Any]:
            return []

        retrying.settle = nothing  # type: ignore[assignment, attr-defined]
    elif step != "never":
        owner, name = real[step]
        before = getattr(owner, name)

        def at_step(*arguments: Any) -> Any:
            return die() if armed[0] else before(*arguments)

        setattr(owner, name, at_step)
    policy = RetryPolicy(steps_ms=())
    with (
        connect(bootstrap) as client,
        client.consumer(group, topic, retry=policy, member_id="m", session_ms=3_000) as consumer,
    ):
        seen = 0
        while messages := consumer.poll(10, timeout=15 if not seen else 1):
            for message in messages:
                if int(message.value) % 3 == 0:
                    consumer.reject(message, f"{step}: {message.value.decode()}")
                else:
                    processed.append(int(message.value))
                    print(message.value.decode(), flush=True)
            seen += len(messages)
            armed[0] = seen > 40
            consumer.commit()
    return processed


if __name__ == "__main__":
    sort_out(*sys.argv[1:])
