"""Load programs that measure Semel beside a bare floor in one run; see docs/performance.md."""

import os

# As the `semel` command does (`semel.console.main.main`), and here for the same reason: it must
# stand there before any program among these loads gRPC.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
