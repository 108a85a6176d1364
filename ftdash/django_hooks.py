"""Hooks that Django finds through `settings`: limits on waiting and uploads, and a static file."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage
from django.core.exceptions import RequestDataTooBig
from django.core.files.storage import FileSystemStorage, Storage
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from ftdash.accounts.services import record_refusal
from ftdash.formats import size
from pipelines.domain.clock import waiting_at_most
from pipelines.domain.errors import check

Answer = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def impatient(
    get_response: Answer,
) -> Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]:
    """Limits how long a web request waits for silent servers of sources and sinks.

    The preflight of a restore, for example, asks such servers; the answer names a silent one
    instead of waiting for it. Commands and workers wait as long as a run does.
    """

    async def answer_async(request: HttpRequest) -> HttpResponseBase:
        with waiting_at_most(settings.SERVERS_ANSWER_WITHIN_S):
            response: HttpResponseBase = await get_response(request)
            return response

    def answer(request: HttpRequest) -> HttpResponseBase:
        with waiting_at_most(settings.SERVERS_ANSWER_WITHIN_S):
            response: HttpResponseBase = get_response(request)
            return response

    return answer_async if iscoroutinefunction(get_response) else answer


REST_OF_THE_FORM_BYTES = 1 << 20
TOO_LARGE = "The form is larger than a package may be."


class SizeLimit(FileUploadHandler):
    """Refuses a form that is larger than any package may be, before a byte of it is kept.

    Django reads an upload before it looks at rights, so this holds for people who may not upload.
    The log names a person who is signed in.
    """

    def handle_raw_input(self, input_data: Any, meta: Any, content_length: int, *rest: Any) -> None:
        del input_data, meta, rest
        if content_length > settings.PACKAGE_BYTES_MAX + REST_OF_THE_FORM_BYTES:
            self._log(content_length)
            raise RequestDataTooBig(TOO_LARGE)

    def _log(self, content_length: int) -> None:
        user = self.request.user if self.request is not None else None
        if user is not None and user.is_authenticated:
            record_refusal(
                who=user.get_username(),
                what="tried to send",
                subject=f"a form of {size(content_length)}",
                reason="",
                refusal=TOO_LARGE,
            )

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        del start
        return raw_data

    def file_complete(self, file_size: int) -> None:
        del file_size


PLOTLY_FOLDER = "vendor"
PLOTLY = "plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Finds plotly.min.js in the plotly wheel and offers it as `vendor/plotly.min.js`.

    The wheel's folder holds much more; only this one file is served.
    """

    def check(self, **_: Any) -> list[CheckMessage]:
        return []

    def find(self, path: str, find_all: bool = False, **_: Any) -> Any:
        found = [str(wheel_folder() / PLOTLY)] if path == f"{PLOTLY_FOLDER}/{PLOTLY}" else []
        return found if find_all else next(iter(found), None)

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        storage = FileSystemStorage(location=wheel_folder())
        storage.prefix = PLOTLY_FOLDER  # type: ignore[attr-defined]  # collectstatic reads it
        yield PLOTLY, storage


def wheel_folder() -> Path:
    """Finds the wheel's folder without importing plotly, which would take a second."""
    spec = find_spec("plotly")
    check(spec is not None and spec.origin is not None, "the plotly wheel is installed")
    return Path(str(spec and spec.origin)).parent / "package_data"
