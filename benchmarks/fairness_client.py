"""One program that sends as fast as it is let, for `fairness.py`: prints what was stored when.

    python -m benchmarks.fairness_client BOOTSTRAP SECURITY TOPIC SECONDS

Not here: the shares (`fairness.py`).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.harness import random_values
from semel.client import Security, connect

MESSAGE_BYTES: Final = 16 << 10
_CALL: Final = 32
_LOOK_S: Final = 0.05


def main(bootstrap: str, security: str, topic: str, seconds: float) -> int:
    """Sends for so long, and prints (time, bytes stored so far) as JSON."""
    values = random_values(_CALL, MESSAGE_BYTES)
    given = Security.read(Path(security))
    with (
        connect(bootstrap, security=given, keep_routes=False) as client,
        client.producer() as producer,
    ):
        producer.send_many(topic, values[:1])
        producer.flush()
        print("ready", flush=True)
        sys.stdin.readline()
        told: list[tuple[float, int]] = []
        end_s = time.monotonic() + seconds
        look_s = 0.0
        while (now_s := time.monotonic()) < end_s:
            if now_s >= look_s:
                told.append((now_s, producer.stats.bytes))
                look_s = now_s + _LOOK_S
            producer.send_many(topic, values)
        told.append((time.monotonic(), producer.stats.bytes))
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
