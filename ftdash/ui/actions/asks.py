"""The service call of each action, from the values of its form: one function per action."""

from typing import Any

from ftdash.jobs.answers import PipelinePage
from ftdash.points.services import labels
from ftdash.points.services import restore as point_services
from ftdash.points.services.replays import newest_point
from ftdash.points.services.restore import Restore
from ftdash.requests import services
from pipelines.domain.ids import RequestId
from pipelines.domain.status import ClaimMode, KillMoment, SavepointFormat

Values = dict[str, Any]
"""The cleaned values of a form."""


def checkpoint(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.request_checkpoint(pipeline=page.name, requester=who, reason=values["reason"])


def savepoint(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.request_savepoint(
        pipeline=page.name, requester=who, reason=values["reason"], **_of_savepoint(values)
    )


def stop(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.stop_with_savepoint(
        pipeline=page.name,
        requester=who,
        reason=values["reason"],
        drain=values["drain"],
        **_of_savepoint(values),
    )


def label(page: PipelinePage, values: Values, who: str) -> RequestId:
    return labels.label_savepoint(
        pipeline=page.name,
        path=values["path"],
        label=values["label"],
        requester=who,
        reason=values["reason"],
    )


def dispose(page: PipelinePage, values: Values, who: str) -> RequestId:
    return point_services.dispose(
        pipeline=page.name, path=values["path"], requester=who, reason=values["reason"]
    )


def cancel(page: PipelinePage, values: Values, who: str) -> RequestId:
    if not values["with_savepoint"]:
        return services.cancel(pipeline=page.name, requester=who, reason=values["reason"])
    return services.cancel_with_savepoint(
        pipeline=page.name, requester=who, reason=values["reason"], **_of_savepoint(values)
    )


def change(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.change_settings(
        pipeline=page.name, settings=values["changes"], requester=who, reason=values["reason"]
    )


def kill(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.kill_slot(
        pipeline=page.name,
        slot=values["slot"],
        moment=KillMoment(values["moment"]),
        requester=who,
        reason=values["reason"],
    )


def faults(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.allow_faults(
        pipeline=page.name,
        is_allowed=values["is_allowed"],
        requester=who,
        reason=values["reason"],
    )


def restore(page: PipelinePage, values: Values, who: str) -> RequestId:
    asked = Restore(
        pipeline=page.name,
        path=values["path"],
        parallelism=values["parallelism"],
        allow_non_restored_state=values["allow_non_restored_state"],
        reads_files=False,
    )
    return point_services.restore(
        asked,
        requester=who,
        reason=values["reason"],
        claim_mode=ClaimMode(values["claim_mode"] or ClaimMode.NO_CLAIM),
    )


def replay(page: PipelinePage, values: Values, who: str) -> RequestId:
    asked = Restore(pipeline=page.name, path=newest_point(page.name), reads_files=False, replays=())
    return point_services.restore(asked, requester=who, reason=values["reason"])


def start(page: PipelinePage, values: Values, who: str) -> RequestId:
    return services.submit_pipeline(
        name=page.name,
        flow=page.flow,
        parallelism=values["parallelism"],
        max_parallelism=page.max_parallelism,
        parameters=page.parameters,
        settings=page.settings,
        allows_faults=page.allows_faults,
        requester=who,
        reason=values["reason"],
    )


def _of_savepoint(values: Values) -> Values:
    chosen = SavepointFormat(values["savepoint_format"] or SavepointFormat.CANONICAL)
    return {"savepoint_format": chosen, "label": values["label"]}
