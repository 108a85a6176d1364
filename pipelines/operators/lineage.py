"""Which rows of its input an emitted batch descends from, as far as an operator can tell.

Only a run that follows every record asks. An operator that says nothing is taken to have made all
that it emits of all that it was given: right for any operator, and dearer, as each record is then
followed into every part of the output.
"""

from pipelines.operators.columns import Longs


class Lineage:
    """Said before a batch is emitted, and about that one alone."""

    def __init__(self) -> None:
        self._parents: Longs | None = None

    def descend_from(self, parents: Longs) -> None:
        """The next batch: of each of its rows, the row of the input that it was made of."""
        self._parents = parents

    def take(self) -> Longs | None:
        """None: of all rows."""
        parents, self._parents = self._parents, None
        return parents
