"""A lookup that passes many primary keys as one query parameter.

For `__in` with 500 keys, Django prepares, resolves and binds each key. That costs a page 2 ms for
every such query, longer than the database takes to answer.
"""

import json
from collections.abc import Collection
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db.models import F, Lookup
from django.db.models.sql.compiler import SQLCompiler


class Among(Lookup):
    """The right-hand side is a list of integers."""

    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, given = self._column(compiler, connection)
        return f"{column} IN (SELECT value FROM json_each(%s))", (*given, json.dumps(self.rhs))

    def as_postgresql(self, compiler: SQLCompiler, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, given = self._column(compiler, connection)
        return f"{column} = ANY(%s)", (*given, self.rhs)

    def _column(self, compiler: SQLCompiler, connection: Any) -> tuple[str, tuple[Any, ...]]:
        if not self.rhs:
            raise EmptyResultSet  # Django then does not query the database
        column, given = self.process_lhs(compiler, connection)
        return column, tuple(given)


def among(field: str, keys: Collection[int]) -> Among:
    """Returns a condition for `filter`: the integer field or foreign key is one of `keys`."""
    return Among(F(field), sorted(keys))
