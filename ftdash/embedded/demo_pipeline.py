"""The default pipeline of a demonstration, `flight_delays`, with its data and output paths."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from ftdash.embedded.supervisor import Service
from ftdash.requests import services
from pipelines.domain.ids import RequestId
from pipelines.flows.flight_data import prepare

NAME = "flight_delays"
CHECKPOINTING = {"execution.checkpointing.interval": "1 s"}


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """Paths below the home of the installation."""

    data: Path
    files_output: Path
    sql_output: Path

    @classmethod
    def of_home(cls) -> "DemoPaths":
        home = Path(settings.FTDASH_HOME)
        output = home / "output" / NAME
        return cls(home / "flight-data", output / "files", output / "flight_delays.sqlite3")


def prepare_data(paths: DemoPaths) -> None:
    """Writes the year 2013 as Parquet files, once."""
    prepare(paths.data)
    paths.sql_output.parent.mkdir(parents=True, exist_ok=True)


def submit(paths: DemoPaths, *, event_hours_per_s: float, forever: bool, why: str) -> RequestId:
    return services.submit_pipeline(
        name=NAME,
        flow=NAME,
        requester="demo",
        reason=why,
        parallelism=2,
        parameters={
            "data": str(paths.data),
            "output": str(paths.files_output),
            "sql": f"sqlite:///{paths.sql_output}",
            "speed": f"{event_hours_per_s:g}",
            "forever": "true" if forever else "false",
        },
        settings=CHECKPOINTING,
        allows_faults=True,  # people are meant to kill it
    )


@dataclass(frozen=True, slots=True)
class FlightDelays:
    """Implements `demo.Demonstration`: the year over and over."""

    event_hours_per_s: float
    name: str = NAME

    def services(self) -> Iterator[Service]:
        return iter(())

    def prepare(self) -> None:
        prepare_data(DemoPaths.of_home())

    def submit(self) -> RequestId:
        return submit(
            DemoPaths.of_home(),
            event_hours_per_s=self.event_hours_per_s,
            forever=True,
            why="demonstration",
        )

    def output(self) -> list[str]:
        paths = DemoPaths.of_home()
        return [f"{paths.files_output} (Parquet)", f"{paths.sql_output} (SQLite)"]
