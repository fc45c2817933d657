"""Spans of OpenTelemetry, and trace contexts in messages; imported only by clients that trace."""
