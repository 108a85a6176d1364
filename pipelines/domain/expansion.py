"""How large a stored file may become when it is unpacked."""

from pipelines.domain.errors import CorruptSnapshot

EXPANSION_MAX = 256
"""How many bytes a stored byte may become. Our codecs, Snappy and LZ4, stay below it."""

SLACK_BYTES = 64 << 10
"""What small files may need in addition, for dictionaries and headers."""


def check_expansion(name: str, stored: int, unpacked: int) -> None:
    """Takes sizes in bytes. Raises CorruptSnapshot naming the file."""
    if unpacked > EXPANSION_MAX * stored + SLACK_BYTES:
        raise CorruptSnapshot(
            f"{name} would unpack {stored} bytes into {unpacked}; it was not written here and is"
            " not unpacked."
        )
