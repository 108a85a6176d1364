"""The errors that decoding raises for malformed bytes. Decodes nothing itself.

msgspec's own errors are not all of them: text that is not UTF-8 and endless nesting raise Python's.
Code that decodes bytes from a disk or a peer catches `UNDECODABLE`.
"""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
