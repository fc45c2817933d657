"""The metadata store in ZooKeeper."""

from semel.controller.store.zookeeper.zookeeper_store import ZooKeeperStore
from semel.controller.store.zookeeper.zookeeper_tls import ZooKeeperTls

__all__ = ["ZooKeeperStore", "ZooKeeperTls"]
