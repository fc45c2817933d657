"""The master's decision about each request, made before it is proposed."""
