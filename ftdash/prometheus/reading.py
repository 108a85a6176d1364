"""One measured value of a family, with the labels that identify it."""

from dataclasses import dataclass

from ftdash.prometheus.families import Family


@dataclass(frozen=True, slots=True)
class Reading:
    """`labels` are all labels of the family."""

    family: Family
    labels: dict[str, str]
    value: float
