"""What a client that traces makes in place of what one without tracing makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.trace import TracerProvider

from semel.client.producer.intake import Intake
from semel.client.reading.pulling import Puller
from semel.client.reading.untraced import Untraced
from semel.client.tracing.receiving import Receiving
from semel.client.tracing.spans import Spans
from semel.client.tracing.traced_intake import TracedIntake


class Tracing:
    """The tracing of one client."""

    def __init__(self, wanted: bool | TracerProvider) -> None:
        """`wanted` is the provider, or True for the global one."""
        self._spans = Spans(None if isinstance(wanted, bool) else wanted)

    def intake(self, name: str, *arguments: Any, **options: Any) -> Intake:
        """Returns the intake of a producer with a name, or with none."""
        return TracedIntake(self._spans, name, *arguments, **options)

    def receiving(self, puller: Puller, group: str, client_id: Callable[[], str]) -> Untraced:
        """Returns what a reader or consumer tells about its work."""
        return Receiving(self._spans, puller, group, client_id)
