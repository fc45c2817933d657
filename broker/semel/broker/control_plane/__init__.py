"""This node and the controllers: reports, the routes it caches, calls to other groups' masters."""
