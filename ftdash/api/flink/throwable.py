"""Writes an exception as Java's serialization would, for the one field that Flink's client reads.

The bytes are an `org.apache.flink.util.SerializedThrowable` without the original exception: only
its text and the name of its class. Nothing here reads such bytes.

Source: Java Object Serialization Specification 6, chapter 6 (the grammar of the stream).
"""

import base64
import struct

TEXT_MAX = 8_000
"""In characters; a string of the stream has a length of two bytes, a character at most three."""

_HEADER = bytes.fromhex("aced0005")
_OBJECT, _CLASS, _STRING, _REFERENCE, _ARRAY = b"\x73", b"\x72", b"\x74", b"\x71", b"\x75"
_END, _NULL = b"\x78", b"\x70"
_SERIALIZABLE, _WITH_WRITE_METHOD = b"\x02", b"\x03"
_STRING_TYPE = _REFERENCE + struct.pack(">I", 0x7E0001)  # "Ljava/lang/String;", written first
_THROWABLE = "org.apache.flink.util.SerializedThrowable", "65169df51fa713f3"
_EXCEPTION = "java.lang.Exception", "d0fd1f3e1a3b1cc4"
_BASE = "java.lang.Throwable", "d5c635273977b8cb"
_STACK = "[Ljava.lang.StackTraceElement;", "02462a3c3cfd2239"
_NO_CAUSES = "java.util.Collections$EmptyList", "7ab817b43ca79ede"


def serialized_throwable(class_name: str, text: str) -> str:
    """Base64. `text` is what a client prints; it is cut if too long."""
    text = text[:TEXT_MAX]
    stream = (
        _HEADER
        + _OBJECT
        + _class_of_throwable()
        + _NULL  # cause
        + _string(text)
        + _ARRAY
        + _described(_STACK, _SERIALIZABLE)
        + _NULL
        + struct.pack(">I", 0)
        + _OBJECT
        + _described(_NO_CAUSES, _SERIALIZABLE)
        + _NULL
        + _END  # of what Throwable writes
        + _string(text)
        + _string(class_name)
        + _NULL  # the exception itself
    )
    return base64.b64encode(stream).decode()


def _class_of_throwable() -> bytes:
    own = [
        b"L" + _utf("fullStringifiedStackTrace") + _string("Ljava/lang/String;"),
        b"L" + _utf("originalErrorClassName") + _STRING_TYPE,
        b"[" + _utf("serializedException") + _string("[B"),
    ]
    base = [
        b"L" + _utf("cause") + _string("Ljava/lang/Throwable;"),
        b"L" + _utf("detailMessage") + _STRING_TYPE,
        b"[" + _utf("stackTrace") + _string("[Ljava/lang/StackTraceElement;"),
        b"L" + _utf("suppressedExceptions") + _string("Ljava/util/List;"),
    ]
    return (
        _described(_THROWABLE, _SERIALIZABLE, own)
        + _described(_EXCEPTION, _SERIALIZABLE)
        + _described(_BASE, _WITH_WRITE_METHOD, base)
        + _NULL
    )


def _described(named: tuple[str, str], flags: bytes, fields: list[bytes] | None = None) -> bytes:
    """A class without its parent: its name and version, then its fields."""
    name, version = named
    listed = fields or []
    head = _CLASS + _utf(name) + bytes.fromhex(version) + flags
    return head + struct.pack(">H", len(listed)) + b"".join(listed) + _END


def _string(text: str) -> bytes:
    return _STRING + _utf(text)


def _utf(text: str) -> bytes:
    """Java's modified UTF-8: each UTF-16 unit is encoded by itself, and no byte is zero."""
    wide = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(wide) // 2}H", wide)
    encoded = b"".join(
        b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass") for unit in units
    )
    return struct.pack(">H", len(encoded)) + encoded
