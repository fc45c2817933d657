"""Hypothesis for machines that do other work beside the tests: no deadlines by the wall clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")
