"""Programs for this repository only; none of them is part of the wheel."""
