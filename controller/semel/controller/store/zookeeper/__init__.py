"""The metadata store in ZooKeeper."""

from semel.controller.store.zookeeper.zookeeper_store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
