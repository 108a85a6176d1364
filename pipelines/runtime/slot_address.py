"""Where a slot dials, and what it proves there: all that a host gives to a slot it starts."""

from dataclasses import dataclass

from pipelines.domain.ids import Attempt
from pipelines.domain.network import SlotNetworking
from pipelines.domain.settings import Heartbeat


@dataclass(frozen=True, slots=True)
class SlotAddress:
    """What a host passes to its slot. The token is the attempt's secret and is never logged."""

    host: str
    port: int
    token: str
    attempt: Attempt
    heartbeat: Heartbeat
    networking: SlotNetworking
