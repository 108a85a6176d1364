"""Serves Flink's own web page, unmodified, from a local directory, to people who have signed in.

The page calls Flink's routes next to itself and needs more browser rights than ours: elements and
attributes with styles, and one handler in its head, which is allowed only by its digest.
"""

import base64
import hashlib
from pathlib import Path

from csp.constants import NONE, SELF, UNSAFE_HASHES, UNSAFE_INLINE
from csp.decorators import csp_replace
from django.conf import settings
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe
from django.views.static import serve

INDEX = "index.html"
LOAD_STYLES = "this.media='all'"
"""What the page's head does when its style sheet has loaded. Angular writes it there."""

_DIGEST = base64.b64encode(hashlib.sha256(LOAD_STYLES.encode()).digest()).decode()
POLICY = {
    "default-src": [NONE],
    "script-src": [SELF, UNSAFE_HASHES, f"'sha256-{_DIGEST}'"],
    "style-src": [SELF, UNSAFE_INLINE],
    "img-src": [SELF, "data:"],
    "font-src": [SELF, "data:"],
    "connect-src": [SELF],
    "worker-src": [SELF, "blob:"],
    "manifest-src": [SELF],
    "base-uri": [SELF],
    "form-action": [NONE],
    "frame-ancestors": [NONE],
}


@csp_replace(POLICY)  # type: ignore[untyped-decorator]
@require_safe
def page(request: HttpRequest, name: str = INDEX) -> HttpResponseBase:
    folder = settings.FLINK_WEB
    if not folder or not (Path(folder) / INDEX).is_file():
        raise Http404(
            "Flink's page is not here: unpack the folder web/ of flink-dist-2.3.0.jar, and let"
            " FTDASH_FLINK_WEB name it."
        )
    return serve(request, name, document_root=folder)
