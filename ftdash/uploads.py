"""Refuses a form that is larger than any package may be, before a byte of it is kept.

Django reads an upload before it looks at rights, so this holds for people who may not upload. The
log names a person who is signed in.
"""

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadhandler import FileUploadHandler

from ftdash.accounts.services import record_refusal
from ftdash.formats import size

REST_OF_THE_FORM_BYTES = 1 << 20
TOO_LARGE = "The form is larger than a package may be."


class SizeLimit(FileUploadHandler):
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
