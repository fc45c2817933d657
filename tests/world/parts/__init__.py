"""What worlds get on top when it is asked for, a module each; `../registry.py` says how."""
