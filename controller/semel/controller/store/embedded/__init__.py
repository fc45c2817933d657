"""The metadata store that 1, 3 or 5 controllers replicate among themselves."""

from semel.controller.store.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
