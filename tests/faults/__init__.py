"""Real processes under real faults; every run ends with both checkers."""
