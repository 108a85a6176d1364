"""`python -m ftdash.deployment.probe` ends with status 0 if this machine's web server answers.

A container runs it twice a minute as its health check. Loading Django for it would cost more than
the pages do, so it needs only Python's own library. It asks as the proxy would, so that the server
refuses neither the host name nor the protocol.
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
    request = urllib.request.Request(address, headers=headers)
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with without_proxy.open(request, timeout=TIMEOUT_S):
            return 0
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{address}: {error}", file=sys.stderr)
        return 1


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: one to the login or to https is not an answer of /healthz."""

    def redirect_request(self, *given: object) -> None:
        return None


if __name__ == "__main__":
    sys.exit(main())
