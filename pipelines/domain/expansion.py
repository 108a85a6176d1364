"""How much a stored file may become when it is unpacked."""

from pipelines.domain.errors import CorruptSnapshot

EXPANSION_MAX = 256
"""Bytes that one stored byte may become. The codecs written here, Snappy and LZ4, stay below."""

SLACK_BYTES = 64 << 10
"""What small files may need beyond that for dictionaries and headers."""


def check_expansion(name: str, stored: int, unpacked: int) -> None:
    """Both in bytes. Raises CorruptSnapshot naming the file."""
    if unpacked > EXPANSION_MAX * stored + SLACK_BYTES:
        raise CorruptSnapshot(
            f"{name} would unpack {stored} bytes into {unpacked}; it was not written here and is"
            " not unpacked."
        )
