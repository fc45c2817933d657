"""The SDK's classes for asyncio, and for blocking programs, which `tools/unasync.py` generates."""
