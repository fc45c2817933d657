"""The parts that worlds may have, a module each; `../registry.py` says how they are added."""
