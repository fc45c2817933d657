"""The controller: topics, routes, producers' identities, consumer groups."""

from semel.controller.config import ControllerConfig
from semel.controller.node import ControllerNode

__all__ = ["ControllerConfig", "ControllerNode"]
