"""`python -m ftdash.deployment.probe` ends with status 0 if this machine's web server answers.

For the health check of a container, which runs twice a minute. To load Django for it would cost
more than the pages do, so this needs Python's own library only. It asks as the proxy would, so that
neither the name of the host nor the protocol is refused.
"""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 5.0
DEFAULT_ADDRESS = "http://127.0.0.1:8000/healthz"


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ADDRESS
    headers = {"Host": os.environ.get("FTDASH_ALLOWED_HOSTS", "127.0.0.1").split(",")[0]}
    if os.environ.get("FTDASH_TLS") == "1":
        headers["X-Forwarded-Proto"] = "https"
    asked = urllib.request.Request(address, headers=headers)
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with without_proxy.open(asked, timeout=TIMEOUT_S):
            return 0
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{address}: {error}", file=sys.stderr)
        return 1


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect to the login or to https is no answer of /healthz."""

    def redirect_request(self, *given: object) -> None:
        return None


if __name__ == "__main__":
    sys.exit(main())
