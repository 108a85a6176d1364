"""Makes the table and the chart of the performance page from `manage.py bench nexmark --json`.

    python -m bench.nexmark.page FILE... [--chart PICTURE]

Each file ends with a line of JSON that the benchmark printed. If several files have a query, the
last one counts. It prints the table as Markdown. The chart needs a Chromium.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from bench.nexmark.speed import STATELESS

Measured = Mapping[str, Mapping[str, Any]]
"""Maps queries, in the order of their numbers, to the fields of `speed.of_query` and `events`."""

HEAD = (
    "| query | events | pairs | our events per second | times Flink SQL | times less processor time"
    " | longest checkpoint | times Structured Streaming |\n|---|---|---|---|---|---|---|---|"
)
WIDTH, HEIGHT = 1_100, 420
OURS_COLOR, LINE_COLOR = "#748ffc", "#212529"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="PICTURE", help="a PNG to write")
    given = parser.parse_args()
    measured = measured_in(given.files)
    print(table(measured))
    print(summary(measured))
    if given.chart is not None:
        given.chart.parent.mkdir(parents=True, exist_ok=True)
        take(chart(measured), given.chart)


def measured_in(files: Sequence[Path]) -> Measured:
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        answer = json.loads(file.read_text().splitlines()[-1])
        for query, fields in answer["by_query"].items():
            found[query] = {"events": answer["events"], **fields}
    return {query: found[query] for query in sorted(found, key=lambda name: int(name[1:]))}


def table(measured: Measured) -> str:
    lines = [
        f"| {query} | {fields['events'] / 1e6:g} million | {len(fields['ratios'])}"
        f" | {fields['records_per_s']:,}"
        f" | {fields['ratio']:.1f} | {fields['cpu_ratio']:.1f}"
        f" | {fields['checkpoint_ms_p99'] / 1_000:.2f} s | {_beside_structured(fields)} |"
        for query, fields in measured.items()
    ]
    return "\n".join([HEAD, *lines])


def summary(measured: Measured) -> str:
    ratios = {query: fields["ratio"] for query, fields in measured.items()}
    stateful = [ratio for query, ratio in ratios.items() if query not in STATELESS]
    worst = min(ratios, key=ratios.__getitem__)
    return (
        f"{len(ratios)} queries: geometric mean {statistics.geometric_mean(ratios.values()):.2f},"
        f" of the stateful ones {statistics.geometric_mean(stateful):.2f};"
        f" least {ratios[worst]:.2f} ({worst})"
    )


def chart(measured: Measured) -> go.Figure:
    """Draws a bar for each query, and a line at Flink's speed."""
    queries = list(measured)
    ratios = [measured[query]["ratio"] for query in queries]
    mean = statistics.geometric_mean(ratios)
    figure = go.Figure(
        go.Bar(
            x=queries,
            y=ratios,
            marker_color=OURS_COLOR,
            text=[f"{ratio:.1f}" for ratio in ratios],
            textposition="outside",
            cliponaxis=False,
        )
    )
    beside = {"annotation_position": "right", "line_color": LINE_COLOR, "line_width": 1}
    figure.add_hline(y=1, annotation_text="Flink SQL", **beside)
    figure.add_hline(
        y=mean, line_dash="dash", annotation_text=f"geometric mean {mean:.1f}", **beside
    )
    figure.update_layout(
        template="simple_white",
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 60, "r": 140, "t": 20, "b": 40},
        yaxis_title="events per second, times Flink SQL",
    )
    return figure


def take(figure: go.Figure, picture: Path) -> None:
    from tests.web.browser_site import chromium

    with chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(figure.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        page.locator(".svg-container").screenshot(path=picture)


def _beside_structured(fields: Mapping[str, Any]) -> str:
    structured = fields.get("structured")
    return f"{structured['ratio']:.1f}" if isinstance(structured, Mapping) else "-"


if __name__ == "__main__":
    main()
