"""Topics of one cluster as copies in another one."""
