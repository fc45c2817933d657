"""Export and import: the metadata of a cluster as one file, from one store into another."""
