"""Which package of an author a run executes: name and version for people, a digest for machines.

Stored in a run's specification and in every manifest, so a point says which code wrote it.
"""

import msgspec

DIGITS_SHOWN = 12


class ShippedCode(msgspec.Struct, frozen=True, kw_only=True):
    """One wheel. The same digest means the same code."""

    package: str
    version: str
    file: str  # the name of the wheel
    sha256: str  # of the wheel, hexadecimal

    @property
    def described(self) -> str:
        return f"{self.package} {self.version} (sha256 {self.sha256[:DIGITS_SHOWN]})"
