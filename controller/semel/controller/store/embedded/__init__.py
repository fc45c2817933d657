"""The metadata store that 1, 3 or 5 controllers replicate among themselves."""

from semel.controller.store.embedded.embedded_store import EmbeddedStore

__all__ = ["EmbeddedStore"]
