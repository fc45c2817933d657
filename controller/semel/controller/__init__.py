"""The controller: topics, routes, identities of producers, consumer groups."""

from semel.controller.config import ControllerConfig
from semel.controller.node import ControllerNode

__all__ = ["ControllerConfig", "ControllerNode"]
