"""The column by which a changelog says what each row does; see `operators.changelog`.

Source: Flink's `RowKind`.
"""

ROW_KIND = "row_kind"
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = "+I", "-U", "+U", "-D"

TAKE_BACK = (DELETE, UPDATE_BEFORE)
"""The kinds of rows that are taken back; all others are added."""
