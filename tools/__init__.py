"""Programs for this repository alone; nothing of it goes into the wheel."""
