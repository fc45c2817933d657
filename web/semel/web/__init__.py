"""The web console: screens over the SDK's asyncio API, served by `semel web`."""
