"""Serves the built documentation to people who have signed in.

The pages of the theme hold a few inline scripts. Their digests go into the content security
policy, so that these scripts run and no other inline script does.
"""

import base64
import hashlib
import mimetypes
import re
from functools import lru_cache
from pathlib import Path

from csp.constants import SELF, UNSAFE_INLINE
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils._os import safe_join
from django.views.decorators.http import require_safe

from ftdash.documentation.site import current_site

INLINE_SCRIPT = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


@require_safe
def documentation(request: HttpRequest, path: str = "") -> HttpResponse:
    """A file of the site; for a directory, its index page."""
    site = current_site()
    if not site.is_dir():
        return render(request, "documentation/missing.html", status=503)
    file = Path(safe_join(site, path))  # raises SuspiciousFileOperation outside the site
    if file.is_dir():
        if path and not path.endswith("/"):
            return redirect(f"{request.path}/")
        file /= "index.html"
    if not file.is_file():
        raise Http404(f"The documentation has no page {path!r}.")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    answer = HttpResponse(file.read_bytes(), content_type=kind)
    if file.suffix == ".html":
        vars(answer)["_csp_update"] = {  # as the decorators of django-csp do
            "script-src": [SELF, *inline_scripts(file)],
            "style-src": [SELF, UNSAFE_INLINE],
            "worker-src": [SELF],
        }
    return answer


@lru_cache(maxsize=1_000)
def inline_scripts(page: Path) -> tuple[str, ...]:
    """The sources by which the policy allows the inline scripts of this page."""
    scripts = INLINE_SCRIPT.findall(page.read_text())
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return tuple(sorted({f"'sha256-{base64.b64encode(each).decode()}'" for each in digests}))
