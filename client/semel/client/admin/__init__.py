"""Administrative calls: topics, groups, nodes, the cluster, proof of exactly-once."""
