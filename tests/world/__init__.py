"""The simulator of whole clusters: production code on one event queue, one seed a run."""
