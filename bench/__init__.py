"""Benchmarks: each is a program that answers one question, prints its figures and names its bars.

This package makes the examples that they run importable.
"""

import sys
from pathlib import Path

EXAMPLES = (Path(__file__).parents[1] / "examples" / "nexmark",)

for _place in EXAMPLES:
    if str(_place) not in sys.path:
        sys.path.append(str(_place))
