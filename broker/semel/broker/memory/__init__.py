"""The bodies of topics in memory: those that this node has, and how they travel.

Pure: no files, no network, no clock. What the log has of such topics are headers
(`state/apply/lost_offsets.py`).
"""

from semel.broker.memory.bodies import BodyStore, Lacking
from semel.broker.memory.carried import BODILESS, Carried, pack_bodies, read_bodies

__all__ = ["BODILESS", "BodyStore", "Carried", "Lacking", "pack_bodies", "read_bodies"]
