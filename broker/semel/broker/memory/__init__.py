"""The bodies of topics in memory: those that this node has, and how they travel.

Pure: no files, no network, no clock. What the log has of such topics are headers
(`state/apply/lost_offsets.py`).
"""

from semel.broker.memory.bodies import BodyStore, Lacking
from semel.broker.memory.carried import Carried, pack_bodies, read_bodies

__all__ = ["BodyStore", "Carried", "Lacking", "pack_bodies", "read_bodies"]
