"""The built documentation: where it is, if it is current, how to build it, and its address.

The directory of a site is named after the digest of its sources, so that a half-built or outdated
site is never served. It is served to people who have signed in. The pages of the theme hold a few
inline scripts. Their digests go into the content security policy, so that these scripts run and no
other inline script does.
"""

import base64
import hashlib
import mimetypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

from csp.constants import SELF, UNSAFE_INLINE
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils._os import safe_join
from django.views.decorators.http import require_safe

from pipelines.domain.errors import Rejected

LOWEST_PRIORITY = 19
PICTURES = (".png", ".webp")
CONFIGURATION = Path(__file__).with_name("mkdocs.yml")


def current_site() -> Path:
    """The directory of the site for the sources as this process found them; it may not exist."""
    return Path(settings.FTDASH_HOME) / "documentation" / _digest()


def sources() -> list[Path]:
    """The folders of the pages' sources. Changes elsewhere rarely affect the pages."""
    code = ("ftdash/documentation", "pipelines/stream", "pipelines/connectors", "pipelines/domain")
    return [settings.FILES_DIR / "docs", *(settings.BASE_DIR / each for each in code)]


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    files = (path for root in sources() for path in root.rglob("*"))
    kept = (".md", ".py", ".yml", *PICTURES)
    for path in sorted(path for path in files if path.suffix in kept):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        if path.suffix not in PICTURES:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build(directory: Path, *, is_strict: bool) -> None:
    """Replace `directory` by the built site. Raises Rejected if MkDocs refuses the sources."""
    from mkdocs.commands.build import build as build_with_mkdocs  # takes half a second, only here
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".building-") as building:
        built = Path(building) / "site"
        try:
            configuration = load_config(
                str(CONFIGURATION),
                site_dir=str(built),
                docs_dir=str(settings.FILES_DIR / "docs"),
                strict=is_strict,
            )
            build_with_mkdocs(configuration)
        except MkDocsException as error:
            raise Rejected(f"MkDocs cannot build the documentation: {error}") from error
        shutil.rmtree(directory, ignore_errors=True)
        built.rename(directory)


def remove_others(kept: Path) -> None:
    """Delete the sites of earlier sources, and the remains of an interrupted build."""
    for path in kept.parent.iterdir():
        if path != kept:
            shutil.rmtree(path)


@contextmanager
def built_in_background() -> Iterator[None]:
    """Build a missing site in the background at low priority, until the context ends."""
    if current_site().is_dir():
        yield
        return
    process = subprocess.Popen(
        [*settings.MANAGE_COMMAND, "docs"],
        cwd=settings.BASE_DIR,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.nice(LOWEST_PRIORITY),
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


INLINE_SCRIPT = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


@require_safe
def documentation(request: HttpRequest, path: str = "") -> HttpResponse:
    """Serves a file of the site; for a directory, its index page."""
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
    kind = mimetypes.guess_type(file.name, strict=False)[0] or "application/octet-stream"
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
    """Returns the policy's sources (digests) that allow the inline scripts of this page."""
    scripts = INLINE_SCRIPT.findall(page.read_text())
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return tuple(sorted({f"'sha256-{base64.b64encode(each).decode()}'" for each in digests}))
