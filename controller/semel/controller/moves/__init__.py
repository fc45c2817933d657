"""Moving queues between broker groups."""
