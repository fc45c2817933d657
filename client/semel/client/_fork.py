"""Turns off gRPC's own handling of fork, which must happen before gRPC starts.

gRPC's handlers give up while any call is under way, and one always is; the child then dies of a
segmentation fault one time in four (grpcio 1.85, measured). Without them the child lives, and the
client refuses to work in it (`transport/runtime.py`). A program that sets GRPC_ENABLE_FORK_SUPPORT
keeps them.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
