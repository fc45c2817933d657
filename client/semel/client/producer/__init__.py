"""How messages leave: intake, lanes, identity, outcomes."""
