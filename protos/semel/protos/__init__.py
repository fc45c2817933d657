"""The contract between Semel's parts: formats, identifiers, errors and generated messages.

Import the modules themselves (`semel.protos.batch`, `semel.protos.errors`, ...). Nothing is
re-exported here, so that a console that needs only the errors does not load pyarrow.
"""
