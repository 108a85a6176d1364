"""The sample alert rules and the board: every metric and label that they use is served."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import reverse

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docs" / "how-to" / "monitoring"
NAMES = Path(__file__).parent / "prometheus_names.txt"
METRIC = re.compile(r"\b(?:flink|ftdash)_[A-Za-z0-9_]+")
MATCHED = re.compile(r"((?:flink|ftdash)_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")
WRITTEN = re.compile(r"\$labels\.(\w+)|\{\{(\w+)\}\}")


@pytest.mark.parametrize("file", ["alerts.yaml", "grafana-board.json"])
def test_every_used_metric_is_served(file: str) -> None:
    used = {name for text in expressions()[file] for name in METRIC.findall(text)}

    assert used
    assert used <= set(served())


def test_the_scraper_uses_the_address_that_serves_the_metrics() -> None:
    config = yaml.safe_load((MONITORING / "scrape.yaml").read_text())

    assert config["scrape_configs"][0]["metrics_path"] == reverse("prometheus:metrics")
    assert config["rule_files"] == ["alerts.yaml"]


def test_every_used_label_belongs_to_its_metric() -> None:
    every = [each for file in expressions().values() for each in file]
    assert any(MATCHED.findall(text) for text in every)
    assert any(GROUPED.findall(text) for text in every)

    for text in every:
        for metric, matchers in MATCHED.findall(text):
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert used <= served()[metric], text
        known = set().union(*(served()[name] for name in METRIC.findall(text)))
        for labels in GROUPED.findall(text):
            assert set(re.findall(r"\w+", labels)) <= known, text


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    rules = [rule for group in alerts()["groups"] for rule in group["rules"]]

    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_labels_in_alert_texts_and_legends_survive_their_expression() -> None:
    rules = [rule for group in alerts()["groups"] for rule in group["rules"]]
    told = [(rule["expr"], rule["annotations"]["summary"]) for rule in rules]
    targets = [target for panel in board()["panels"] for target in panel["targets"]]
    told += [(target["expr"], target["legendFormat"]) for target in targets]

    assert any(WRITTEN.findall(text) for _, text in told)
    for expression, text in told:
        labels = {name or other for name, other in WRITTEN.findall(text)}
        assert labels <= left_over_by(expression), (expression, text)


def test_the_alerts_cover_the_most_urgent_metrics() -> None:
    used = {name for text in expressions()["alerts.yaml"] for name in METRIC.findall(text)}

    assert {
        "ftdash_since_completed_checkpoint_seconds",
        "ftdash_since_committed_output_seconds",
        "flink_jobmanager_job_numberOfFailedCheckpoints",
        "ftdash_last_checkpoint_buffered_bytes",
        "ftdash_records_to_replay",
        "ftdash_process_up",
    } <= used


def test_the_panels_of_the_board_have_a_title_a_unit_and_a_place_of_their_own() -> None:
    panels = board()["panels"]

    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def left_over_by(expression: str) -> set[str]:
    """Returns the labels left by an aggregation: those in `by`, else all of the metric."""
    kept = re.search(r"\bby \(([^)]*)\)", expression)
    if kept:
        return set(re.findall(r"\w+", kept.group(1)))
    return set().union(*(served()[name] for name in METRIC.findall(expression)))


def expressions() -> dict[str, list[str]]:
    rules = [rule["expr"] for group in alerts()["groups"] for rule in group["rules"]]
    targets = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    variables = [
        each["query"]["query"] for each in board()["templating"]["list"] if each["type"] == "query"
    ]
    return {"alerts.yaml": rules, "grafana-board.json": targets + variables}


def alerts() -> Any:
    return yaml.safe_load((MONITORING / "alerts.yaml").read_text())


def board() -> Any:
    return json.loads((MONITORING / "grafana-board.json").read_text())


def served() -> dict[str, set[str]]:
    """Returns the labels of each metric, with those that a scraper adds to all."""
    lines = [line for line in NAMES.read_text().splitlines() if not line.startswith("#")]
    return {
        name: {*labels.split(","), "job", "instance"} for name, _, labels in map(str.split, lines)
    }
