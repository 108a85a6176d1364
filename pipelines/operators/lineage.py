"""From which input rows an emitted batch descends, as far as an operator can tell.

Only a run that follows every record uses this. If an operator does not say, all that it emits is
taken to descend from all of its input. That is right for any operator but costs more, because each
record is then followed into every part of the output.
"""

from pipelines.operators.columns import Longs


class Lineage:
    """Set before a batch is emitted; applies to that batch only."""

    def __init__(self) -> None:
        self._parents: Longs | None = None

    def descend_from(self, parents: Longs) -> None:
        """`parents` gives, for each row of the next batch, the input row from which it was made."""
        self._parents = parents

    def take(self) -> Longs | None:
        """None: the batch descends from all rows."""
        parents, self._parents = self._parents, None
        return parents
