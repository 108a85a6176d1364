"""Flink's addresses: as its web page requests them, and below `v1/` for its command line."""

from django.urls import path, re_path

from ftdash.api.flink import action_routes, checkpoints, cluster, http, jobs, vertices
from ftdash.api.flink.http import nothing_here, route

app_name = "flink"

urlpatterns = [
    path("config", route(get=cluster.config), name="config"),
    path("overview", route(get=cluster.overview), name="overview"),
    path("applications/overview", route(get=cluster.applications), name="applications"),
    path("applications/<str:application>", route(get=cluster.application), name="application"),
    path(
        "applications/<str:application>/exceptions",
        route(get=cluster.application_exceptions),
        name="application-exceptions",
    ),
    path(
        "applications/<str:application>/cancel",
        route(post=action_routes.cancel_application),
        name="cancel-application",
    ),
    path("jobmanager/config", route(get=cluster.settings), name="settings"),
    path("jobmanager/metrics", route(get=cluster.metrics), name="cluster-metrics"),
    path("jobs", route(get=jobs.ids), name="jobs"),
    path("jobs/metrics", route(get=jobs.metrics_of_all), name="jobs-metrics"),
    path("taskmanagers", route(get=cluster.task_managers), name="taskmanagers"),
    path(
        "taskmanagers/metrics",
        route(get=cluster.metrics_of_task_managers),
        name="taskmanagers-metrics",
    ),
    path("taskmanagers/<str:manager>", route(get=cluster.task_manager), name="taskmanager"),
    path(
        "taskmanagers/<str:manager>/metrics",
        route(get=cluster.task_manager_metrics),
        name="taskmanager-metrics",
    ),
    path("jobs/<str:job>/metrics", route(get=jobs.metrics_of), name="job-metrics"),
    path(
        "jobs/<str:job>/execution-result",
        route(get=jobs.execution_result),
        name="execution-result",
    ),
    path("jobs/overview", route(get=jobs.overview), name="jobs-overview"),
    path("jobs/<str:job>", route(get=jobs.detail, patch=action_routes.cancel), name="job"),
    path(
        "jobs/<str:job>/yarn-cancel", route(get=action_routes.cancel_by_get), name="cancel-by-get"
    ),
    path("jobs/<str:job>/stop", route(post=action_routes.stop), name="stop"),
    path("jobs/<str:job>/savepoints", route(post=action_routes.savepoint), name="savepoints"),
    path(
        "jobs/<str:job>/savepoints/<str:trigger>",
        route(get=action_routes.savepoint_progress),
        name="savepoint-progress",
    ),
    path("savepoint-disposal", route(post=action_routes.dispose), name="disposal"),
    path(
        "savepoint-disposal/<str:trigger>",
        route(get=action_routes.disposal_progress),
        name="disposal-progress",
    ),
    path("jobs/<str:job>/status", route(get=jobs.status), name="job-status"),
    path("jobs/<str:job>/plan", route(get=jobs.plan), name="job-plan"),
    path("jobs/<str:job>/config", route(get=jobs.config), name="job-config"),
    path("jobs/<str:job>/exceptions", route(get=jobs.exceptions), name="exceptions"),
    path("jobs/<str:job>/accumulators", route(get=jobs.accumulators), name="accumulators"),
    path(
        "jobs/<str:job>/checkpoints",
        route(get=checkpoints.statistics, post=action_routes.checkpoint),
        name="checkpoints",
    ),
    path(
        "jobs/<str:job>/checkpoints/config",
        route(get=checkpoints.config),
        name="checkpoint-config",
    ),
    path(
        "jobs/<str:job>/checkpoints/<str:trigger>",
        route(get=action_routes.checkpoint_progress),
        name="checkpoint-progress",
    ),
    path(
        "jobs/<str:job>/checkpoints/details/<str:checkpoint>",
        route(get=checkpoints.details),
        name="checkpoint",
    ),
    path(
        "jobs/<str:job>/checkpoints/details/<str:checkpoint>/subtasks/<str:vertex>",
        route(get=checkpoints.subtasks),
        name="checkpoint-subtasks",
    ),
    path(
        "jobs/<str:job>/resource-requirements",
        route(get=jobs.requirements, put=jobs.requirements),
        name="requirements",
    ),
    path("jobs/<str:job>/rescaling", route(patch=jobs.rescaling), name="rescaling"),
    path(
        "jobs/<str:job>/rescaling/<str:trigger>",
        route(get=jobs.rescaling_progress),
        name="rescaling-progress",
    ),
    path(
        "jobs/<str:job>/clientHeartbeat",
        route(patch=action_routes.client_heartbeat),
        name="client-heartbeat",
    ),
    path("jobs/<str:job>/jobmanager/config", route(get=jobs.settings), name="job-settings"),
]

_VERTEX = "jobs/<str:job>/vertices/<str:vertex>"
urlpatterns += [
    path(_VERTEX, route(get=vertices.detail), name="vertex"),
    path(f"{_VERTEX}/backpressure", route(get=vertices.backpressure), name="backpressure"),
    path(f"{_VERTEX}/subtasktimes", route(get=vertices.times), name="subtask-times"),
    path(f"{_VERTEX}/taskmanagers", route(get=vertices.task_managers), name="vertex-slots"),
    path(f"{_VERTEX}/watermarks", route(get=vertices.watermarks), name="watermarks"),
    path(f"{_VERTEX}/accumulators", route(get=vertices.accumulators), name="vertex-accumulators"),
    path(f"{_VERTEX}/metrics", route(get=vertices.all_metrics), name="vertex-metrics"),
    path(f"{_VERTEX}/subtasks/metrics", route(get=vertices.subtask_metrics), name="aggregated"),
    path(
        f"{_VERTEX}/subtasks/accumulators",
        route(get=vertices.accumulators_of_subtask),
        name="subtasks-accumulators",
    ),
    path(f"{_VERTEX}/subtasks/<str:index>", route(get=vertices.current), name="subtask"),
    path(
        f"{_VERTEX}/subtasks/<str:index>/attempts/<str:attempt>",
        route(get=vertices.attempt),
        name="subtask-attempt",
    ),
    path(
        f"{_VERTEX}/subtasks/<str:index>/metrics",
        route(get=vertices.all_metrics_of_subtask),
        name="subtask-metrics",
    ),
    path(
        f"{_VERTEX}/jm-operator-metrics",
        route(get=vertices.operator_metrics),
        name="operator-metrics",
    ),
    *(
        path(f"{place}/<path:rest>", route(get=nothing_here), name=f"no-{place}")
        for place in ("jobs", "taskmanagers", "jobmanager", "applications")
    ),
]

beside_page = [
    *urlpatterns,
    path("", http.page, name="page"),
    path("<path:name>", http.page, name="page-file"),
]
"""Flink's page, and the addresses that it requests."""

versioned = [*urlpatterns, re_path(r"^.*$", route(get=nothing_here), name="nothing")]
"""The same addresses below a prefix of their own, where nothing else exists."""
