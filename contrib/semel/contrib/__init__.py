"""Semel under frameworks of others; each needs the extra that installs its framework.

`semel.contrib.kombu`: a transport for Kombu, and so a broker for Celery (`semel[celery]`).
"""
