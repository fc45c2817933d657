"""The health check of the image: whether the program's event loop lives.

It gets `SEMEL_HEALTH_URL`, by default `/livez` of a node's metrics port, and exits with 0 for the
status 200, else with 1 and one line. It does not ask whether a node is ready: a container that
fetches a lost disk from its peers must not be ended for that.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request

URL = "http://127.0.0.1:9100/livez"
WITHIN_S = 4.0


def main() -> int:
    url = os.environ.get("SEMEL_HEALTH_URL") or URL
    if not url.startswith(("http://", "https://")):
        print(f"SEMEL_HEALTH_URL is {url}, which is no URL of HTTP")
        return 1
    # It asks its own container: for whom a certificate is made is none of its business.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=WITHIN_S) as answer:
            print(answer.read(100).decode(errors="replace").strip())
    except OSError as error:
        print(f"{url}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
