"""One measured value of a family, with the labels that tell it from others."""

from dataclasses import dataclass

from ftdash.prometheus.families import Family


@dataclass(frozen=True, slots=True)
class Reading:
    """`labels` are those of the family, all of them."""

    family: Family
    labels: dict[str, str]
    value: float
