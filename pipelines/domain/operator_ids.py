"""The operator id of a uid: the name under which a point keeps the operator's state.

Source: Flink, `StreamGraphHasherV2` (murmur3_128 of the UTF-8 uid, seed 0, in Guava's byte order).
"""

import mmh3

from pipelines.domain.ids import Uid


def operator_id(uid: Uid) -> str:
    """32 hexadecimal characters, equal to what Flink derives from the same uid."""
    return mmh3.mmh3_x64_128_digest(uid.encode(), 0).hex()
