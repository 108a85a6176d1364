"""Refuses a form that is larger than any package may be, before a byte of it is kept.

Django reads an upload before it looks at rights, so this holds for people who may not upload.
"""

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadhandler import FileUploadHandler

REST_OF_THE_FORM_BYTES = 1 << 20


class SizeLimit(FileUploadHandler):
    def handle_raw_input(self, input_data: Any, meta: Any, content_length: int, *rest: Any) -> None:
        del input_data, meta, rest
        if content_length > settings.PACKAGE_BYTES_MAX + REST_OF_THE_FORM_BYTES:
            raise RequestDataTooBig("The form is larger than a package may be.")

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        del start
        return raw_data

    def file_complete(self, file_size: int) -> None:
        del file_size
