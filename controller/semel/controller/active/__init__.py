"""What the active controller runs, and how a controller becomes the active one."""
