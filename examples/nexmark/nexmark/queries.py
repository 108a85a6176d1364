"""All queries by name. q6 is left out here, because Flink SQL cannot run it either."""

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.stream import Stream

from nexmark.choosing import q18, q19
from nexmark.joins import q3, q4, q9, q13, q20, q23
from nexmark.rows import q0, q1, q2, q10, q14, q21, q22
from nexmark.tables import Tables
from nexmark.totals import q15, q16, q17
from nexmark.windows import q5, q7, q8, q11, q12


@dataclass(frozen=True, slots=True)
class Query:
    """`newest_by` is the key of running totals; the newest row of each key is the result."""

    build: Callable[[Tables], Stream]
    newest_by: tuple[str, ...] = ()


QUERIES = {
    "q0": Query(q0),
    "q1": Query(q1),
    "q2": Query(q2),
    "q3": Query(q3),
    "q4": Query(q4, newest_by=("category",)),
    "q5": Query(q5),
    "q7": Query(q7),
    "q8": Query(q8),
    "q9": Query(q9),
    "q10": Query(q10),
    "q11": Query(q11),
    "q12": Query(q12),
    "q13": Query(q13),
    "q14": Query(q14),
    "q15": Query(q15, newest_by=("day",)),
    "q16": Query(q16, newest_by=("channel", "day")),
    "q17": Query(q17, newest_by=("auction", "day")),
    "q18": Query(q18),
    "q19": Query(q19),
    "q20": Query(q20),
    "q21": Query(q21),
    "q22": Query(q22),
    "q23": Query(q23),
}
