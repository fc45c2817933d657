"""Members of the group: changes that an operator asks for, founding, a node's own status."""
