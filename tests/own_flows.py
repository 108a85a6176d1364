"""Declares pipelines of tests to the engine, in this process and those that it starts."""

import os

from pipelines.flows.finding import VARIABLE, declared_flows


def declare(name: str, module: str) -> None:
    """Declares `FLOW` of `module` as the pipeline `name`."""
    reference = f"{module}:FLOW"
    if declared_flows().get(name) != reference:
        listed = os.environ.get(VARIABLE, "")
        os.environ[VARIABLE] = f"{listed},{name}={reference}".lstrip(",")
