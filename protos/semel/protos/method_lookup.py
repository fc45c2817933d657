"""What the .proto files say of a method, found by the path under which gRPC knows it.

Not here: its options (`call_classes.py`, `security/declared.py`).
"""

from __future__ import annotations

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor


def find_method(path: str) -> MethodDescriptor | None:
    """The method `/SERVICE/METHOD`; None for one that no .proto file has."""
    service, _, name = path.strip("/").partition("/")
    try:
        found = descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return None
    return found.methods_by_name.get(name)
