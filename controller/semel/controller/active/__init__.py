"""The active controller: what it runs, and how a controller becomes the active one."""
