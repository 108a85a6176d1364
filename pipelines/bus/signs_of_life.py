"""The driver's signs of life: one small file in the run's directory, written over and over.

It lies on the disk of the journal, and each sign is synced: if that disk stands still, no sign
appears. The file is overwritten in place, so that a driver that dies leaves no other file.
"""

import os

import msgspec

from pipelines.domain.driver_sign import DriverSign
from pipelines.domain.errors import UNDECODABLE
from pipelines.domain.run import RunDirectory

SIGN_BYTES = 192
"""Every sign has the same length, so that none leaves a part of a longer one behind it."""


def give_sign(run_directory: RunDirectory, sign: DriverSign) -> None:
    """Raises OSError if the disk does not take it."""
    content = msgspec.json.encode(sign).ljust(SIGN_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(run_directory.sign_file, flags, 0o600)
    try:
        os.pwrite(descriptor, content, 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def newest_sign(run_directory: RunDirectory) -> DriverSign | None:
    """None: there is none yet, or it was just being written. Raises OSError."""
    try:
        return msgspec.json.decode(run_directory.sign_file.read_bytes(), type=DriverSign)
    except (FileNotFoundError, *UNDECODABLE):
        return None
