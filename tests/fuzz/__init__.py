"""Bad input by the million: whatever comes in gets one clear error."""
