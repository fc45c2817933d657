"""The SDK's classes, for blocking programs and for asyncio."""
