"""The contract between Semel's parts: formats, identifiers, errors and generated messages.

Import the modules themselves (`semel.protos.batch`, `semel.protos.errors`, ...): nothing is
re-exported here, so that a console which needs only the errors does not load pyarrow.

Not here: anything that opens a file, a socket or reads a clock.
"""
