"""What decoding raises for bytes that are not what they should be. Decodes nothing itself.

msgspec's own errors are not all of it: text that is not UTF-8 and nesting without end raise
Python's. Whoever decodes what comes from a disk or a peer catches `UNDECODABLE`.
"""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
