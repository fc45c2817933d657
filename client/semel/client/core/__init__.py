"""Everything in the client that decides, without I/O, clocks or global randomness."""
