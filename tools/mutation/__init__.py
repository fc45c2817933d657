"""Mutants of the product's code, and how many of them the tests kill."""
