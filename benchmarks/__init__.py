"""Load programs that measure Semel beside a bare floor in one run; see docs/performance.md."""
