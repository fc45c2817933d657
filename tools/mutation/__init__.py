"""Makes mutants of the product's code and measures how many of them the tests kill."""
