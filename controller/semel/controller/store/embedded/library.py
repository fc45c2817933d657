"""pysyncobj, without what importing it does to the process.

Its module for Windows replaces `socket.inet_ntop` everywhere by a function that knows no IPv6
outside Windows. The interpreter's own is put back here, so everything else of the store takes
pysyncobj from this module.

Not here: its private names (`exposed.py`).
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
