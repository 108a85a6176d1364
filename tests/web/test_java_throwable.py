"""The bytes that Flink's Java client reads: the class it knows, with correct lengths."""

import base64

import pytest

from ftdash.api.flink.names import serialized_throwable

VERSIONED_CLASS = b"SerializedThrowable" + (7284183123441947635).to_bytes(8, "big")
"""A client with another serialVersionUID refuses the stream, and retries in vain for a minute."""


@pytest.mark.parametrize(
    "text", ["plain", "", "zero \0 byte", "emoji \U0001f600", "lone \ud800", "x" * 100_000]
)
def test_any_text_gives_a_stream_with_correct_lengths(text: str) -> None:
    stream = base64.b64decode(serialized_throwable("ftdash.RequestFailed", text))

    assert VERSIONED_CLASS in stream
    at = stream.index(b"suppressedExceptions")
    start = stream.index(b"xpp", at) + 4  # the text follows the parent and the cause, both null
    length = int.from_bytes(stream[start : start + 2], "big")
    assert stream[start - 1 : start] == b"t"
    assert stream[start + 2 + length : start + 5 + length] == b"ur\x00"
    assert b"\0" not in stream[start + 2 : start + 2 + length]
