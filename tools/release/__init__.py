"""Making a release: checks, artifacts, trials (docs/releasing.md)."""
