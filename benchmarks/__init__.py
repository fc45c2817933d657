"""Load programs that measure Semel beside a bare floor in one run; see docs/performance.md."""

import os

# For the same reason as in the `semel` command (`semel.console.main.main`): the variable must be
# set before any of these programs loads gRPC.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
