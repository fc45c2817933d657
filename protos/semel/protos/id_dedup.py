"""Limits of dedup by message id, which clients, controllers and brokers check alike.

Not here: the settings themselves (`common.proto`, message IdDedup), what an id counts in a window
(the broker's state), ids that nobody compares (the client).
"""

from __future__ import annotations

from typing import Final

WINDOW_BYTES_MIN: Final = 1 << 20
WINDOW_BYTES_MAX: Final = (1 << 62) - 1
SEED_BYTES: Final = 16
"""The secret of a topic's fingerprints, which the controller draws."""
COMPARED_ID_BYTES_MAX: Final = 128
"""The longest message id on a topic that compares ids."""
