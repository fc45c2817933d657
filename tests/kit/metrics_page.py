"""The metrics page of a running node, as figures by name."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from semel.broker.metric_table import COMMON

Page = dict[str, float]


async def scrape(address: str, common: Sequence[str] = COMMON) -> Page:
    """Figures by name; those with labels of their own by `name{value,value}`."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            found: str = answer.read().decode()
            return found

    page: Page = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(read)):
        for sample in family.samples:
            own = [v for k, v in sorted(sample.labels.items()) if k not in common]
            page[sample.name + (f"{{{','.join(own)}}}" if own else "")] = sample.value
    return page
