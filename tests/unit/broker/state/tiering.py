"""Records about tiers for the state's tests, and a mix-in that proposes them."""

from __future__ import annotations

import hashlib
from typing import Any

from semel.broker.state import Accepted, ControlDecision, QueueState, State
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, control, ref


def digest(number: int) -> bytes:
    return hashlib.sha256(b"manifest %d" % number).digest()


def tiered(number: int, start: int, end: int, **fields: Any) -> control_pb2.Tiered:
    """The manifest that follows number - 1 of these."""
    given: dict[str, Any] = {
        "queue": ref(),
        "number": number,
        "length": 500 + number,
        "sha256": digest(number),
        "previous_sha256": digest(number - 1) if number > 1 else b"",
        "tier_start": start,
        "tier_end": end,
    }
    return control_pb2.Tiered(**given | fields)


class Tiering(Group):
    """A group whose queue `KEY` has a tier."""

    @property
    def queue(self) -> QueueState:
        return self.state.queues[KEY]

    def tier(self, record: control_pb2.Tiered, *, commit: bool = True) -> ControlDecision:
        decision = self.admission.queues.admit_tiered(record)
        if isinstance(decision, Accepted):
            self.entry.append(control(tiered=record))
            if commit:
                self.commit()
        return decision

    def forget(self, local_start: int) -> ControlDecision:
        record = control_pb2.Forget(queue=ref(), local_start=local_start)
        decision = self.admission.queues.admit_forget(record)
        if isinstance(decision, Accepted):
            self.entry.append(control(forget=record))
            self.commit()
        return decision

    def trim(self, start: int) -> None:
        record = control_pb2.Trim(queue=ref(), log_start_offset=start)
        assert isinstance(self.admission.queues.admit_trim(record), Accepted)
        self.entry.append(control(trim=record))
        self.commit()

    def checked(self) -> State:
        """The state, equal to a replay and to itself from canonical bytes."""
        data = b"".join(self.state.to_parts())
        assert b"".join(self.replayed().to_parts()) == data
        assert b"".join(State.from_bytes(data).to_parts()) == data
        return self.state
