"""gRPC at the broker's edge: decodes, checks, hands over to the node, answers."""
