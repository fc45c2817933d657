"""Quotas of requests for calls: one that comes too early is told when to come back.

How it works. `CallQuotas` stands before the handlers of a server, behind the check of the rules if
there is one (`CallChecks`). It counts each call for its caller and raises Throttled before the
handler runs. Programs of the cluster and administrators are not limited, so that the cluster works
and quotas can be changed. A method that declares `uncounted` in its .proto file is not counted:
its delay would cost the caller more than time.

Not here: messages of produce streams and fetches, which wait (the broker's `quotas/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.protos.call_classes import is_counted
from semel.protos.rpc import CallChecks
from semel.protos.security.declared import declared
from semel.protos.security.enforcement import CALLER
from semel.protos.security.meters import Meters

Behavior = Callable[..., Any]


class CallQuotas:
    """Counts calls; the checks of one server (`rpc.CallChecks`)."""

    def __init__(self, meters: Meters, inner: CallChecks | None) -> None:
        """`inner` finds out who calls and checks the rules; None if nobody does."""
        self._meters = meters
        self._inner = inner

    def single(self, method: str, behavior: Behavior) -> Behavior:
        paced = behavior
        if self._counts(method):

            async def counted(request: Any, context: Any) -> Any:
                self._take()
                return await behavior(request, context)

            paced = counted
        return paced if self._inner is None else self._inner.single(method, paced)

    def replies(self, method: str, behavior: Behavior) -> Behavior:
        paced = behavior
        if self._counts(method):

            def counted(request: Any, context: Any) -> Any:
                self._take()
                return behavior(request, context)

            paced = counted
        return paced if self._inner is None else self._inner.replies(method, paced)

    def requests(self, method: str, behavior: Behavior) -> Behavior:
        """The streams count their messages themselves."""
        return behavior if self._inner is None else self._inner.requests(method, behavior)

    def _counts(self, method: str) -> bool:
        if not is_counted(method):
            return False  # or it is another service's, such as gRPC's own
        what = declared(method)
        # Without certificates nobody knows whether a node or a client calls.
        return not what.for_nodes_only and not (what.nodes and self._inner is None)

    def _take(self) -> None:
        if not self._meters.active:
            return
        caller = CALLER.get()
        if caller is None:
            self._meters.take_request("")
        elif not caller.node and not caller.administrator:
            self._meters.take_request(caller.principal)
