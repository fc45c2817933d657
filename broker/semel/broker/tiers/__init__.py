"""The node's way to the object store: the place itself, and reads of what only it has."""
