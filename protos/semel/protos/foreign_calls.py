"""What calls of other people's services need: their .proto files declare nothing of ours.

How it works. A node serves gRPC's own health service beside its own services. The class of each of
its methods stands here instead of in its .proto file, and all that read declarations look here
first (`call_classes.py`, `security/declared.py`).

Invariant: everybody who reaches the port may call what is named here, without a login, and no quota
counts it; so it tells nothing but whether the node serves.

Not here: the service (`health.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.protos.v1 import isolation_pb2 as pb

HEALTH: Final = "grpc.health.v1.Health"

FOREIGN: Final[Mapping[str, int]] = {
    f"/{HEALTH}/Check": pb.CALL_CLASS_HEALTH,
    f"/{HEALTH}/List": pb.CALL_CLASS_HEALTH,
    f"/{HEALTH}/Watch": pb.CALL_CLASS_WATCH,
}
"""The class of each method."""
