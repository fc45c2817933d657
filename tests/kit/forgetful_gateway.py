"""A Kafka gateway with a bug planted: it takes idempotent producers for ordinary ones, so what they
send again is stored again. Judges of the gateway must notice. Its arguments are the console's."""

from __future__ import annotations

import sys

from semel.console.main import main
from semel.gateway.records.decoding import DecodedBatch

if __name__ == "__main__":
    DecodedBatch.is_idempotent = property(lambda batch: False)  # type: ignore[assignment,method-assign]
    sys.exit(main())
