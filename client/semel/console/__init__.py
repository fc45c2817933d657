"""The `semel` command: one module a noun, all output through `render`."""
