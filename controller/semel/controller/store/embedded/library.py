"""pysyncobj, without the side effect of importing it.

pysyncobj's module for Windows replaces `socket.inet_ntop` on every system by a function that does
not know IPv6 outside Windows. This module restores the interpreter's own function, so the rest of
the store takes pysyncobj from here.

Not here: pysyncobj's private names (`exposed.py`).
"""

from __future__ import annotations

import _socket
import socket

import pysyncobj.syncobj as syncobj
from pysyncobj import SERIALIZER_STATE, SyncObj, SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

socket.inet_ntop = _socket.inet_ntop

__all__ = [
    "SERIALIZER_STATE",
    "Journal",
    "Node",
    "SyncObj",
    "SyncObjConf",
    "Transport",
    "syncobj",
]
