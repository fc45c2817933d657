"""The master's decision about each request, which it takes before it proposes a record."""
