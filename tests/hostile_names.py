"""Names with a special meaning in a statement, a pattern or a path."""

HOSTILE = "x\"'; drop table victim; --{*}[a-z]?\n../%s:x"
"""Quotes, a statement, a cluster's tag, patterns, a line break, a path and placeholders. Short
enough wherever a name may be free text."""

NUL = "real\0name"
LONG = "x" * 300
