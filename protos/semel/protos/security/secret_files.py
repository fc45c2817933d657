"""Which files are shown to nobody else, so that they may hold a key, a password or a token.

How it works. The file has a mode such as 0600. One of root's may be shown to its group where this
process is not root and reads it through that group: so Kubernetes mounts secrets for programs that
have no rights.
"""

from __future__ import annotations

import os


def shown_to_others(found: os.stat_result) -> bool:
    """Whether others than this process's user, and root, can read or change a file."""
    through_group = found.st_uid == 0 and os.geteuid() != 0
    return bool(found.st_mode & (0o037 if through_group else 0o077))
