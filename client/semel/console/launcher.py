"""Starts a node so that it dies with its parent: `launcher.py PARENT_PID PROGRAM ARGUMENT...`.

How it works. The supervisor runs this file as a script of a bare interpreter. It asks the kernel
to kill the process when the parent's starting thread ends, then becomes PROGRAM; the kernel keeps
the wish across execv. Doing this here and not between fork and exec of the parent keeps Python
code out of a half-copied process.

Invariants
1. A parent that died before the wish was made is noticed: nothing is started then.
2. Standard library only and no package imports: it runs with `-I -S`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Makes the wish, checks the parent, becomes the program."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
