"""A cluster's metadata as one file, out of one store and into another."""
