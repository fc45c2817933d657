"""A process that ends at SIGTERM, and leaves one that does not and that holds its stdout.

`python -m tests.unit.tools.clinging group|session|stubborn`: in its own process group, or in
another; a stubborn one does not end at SIGTERM itself.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys

STAY = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main(where: str) -> None:
    """Tells its child's process id and waits."""
    if where == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", STAY], start_new_session=where == "session")
    print(json.dumps({"child": child.pid}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
