"""Starts a node so that it dies with its parent: `launcher.py PARENT_PID PROGRAM ARGUMENT...`.

How it works. The supervisor runs this file as a script of a bare interpreter. The script asks the
kernel to kill the process when the parent's starting thread ends, and then becomes PROGRAM; the
kernel keeps that request across execv. Doing this here, and not between fork and exec of the
parent, keeps Python code out of a half-copied process.

Invariants
1. A parent that died before the request was made is noticed: nothing is started then.
2. It uses only the standard library and imports no package: it runs with `-I -S`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Makes the request to the kernel, checks the parent, becomes the program."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
