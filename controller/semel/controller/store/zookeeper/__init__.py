"""The metadata store in ZooKeeper."""

from semel.controller.store.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
