"""The node's part of the control plane: reports, cached routes, calls to other groups' masters."""
