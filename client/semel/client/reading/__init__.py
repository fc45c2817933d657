"""How batches arrive: fetches, buffers, readers without a group."""
