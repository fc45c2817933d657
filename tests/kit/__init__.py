"""What tests and benchmarks share: clusters of processes, disks that fail, ZooKeeper, waiting."""
