"""Flink's addresses: as its web page requests them, and below `v1/` for its command line."""

from django.urls import path, re_path

from ftdash.api.flink import (
    action_routes,
    checkpoint_routes,
    cluster_routes,
    http,
    job_routes,
    subtask_routes,
    vertex_routes,
)
from ftdash.api.flink.http import nothing_here, route

app_name = "flink"

urlpatterns = [
    path("config", route(get=cluster_routes.config), name="config"),
    path("overview", route(get=cluster_routes.overview), name="overview"),
    path("applications/overview", route(get=cluster_routes.applications), name="applications"),
    path(
        "applications/<str:application>", route(get=cluster_routes.application), name="application"
    ),
    path(
        "applications/<str:application>/exceptions",
        route(get=cluster_routes.application_exceptions),
        name="application-exceptions",
    ),
    path(
        "applications/<str:application>/cancel",
        route(post=action_routes.cancel_application),
        name="cancel-application",
    ),
    path("jobmanager/config", route(get=cluster_routes.settings), name="settings"),
    path("jobmanager/metrics", route(get=cluster_routes.metrics), name="cluster-metrics"),
    path("jobs", route(get=job_routes.ids), name="jobs"),
    path("jobs/metrics", route(get=job_routes.metrics_of_all), name="jobs-metrics"),
    path("taskmanagers", route(get=cluster_routes.task_managers), name="taskmanagers"),
    path(
        "taskmanagers/metrics",
        route(get=cluster_routes.metrics_of_task_managers),
        name="taskmanagers-metrics",
    ),
    path("taskmanagers/<str:manager>", route(get=cluster_routes.task_manager), name="taskmanager"),
    path(
        "taskmanagers/<str:manager>/metrics",
        route(get=cluster_routes.task_manager_metrics),
        name="taskmanager-metrics",
    ),
    path("jobs/<str:job>/metrics", route(get=job_routes.metrics_of), name="job-metrics"),
    path(
        "jobs/<str:job>/execution-result",
        route(get=job_routes.execution_result),
        name="execution-result",
    ),
    path("jobs/overview", route(get=job_routes.overview), name="jobs-overview"),
    path("jobs/<str:job>", route(get=job_routes.detail, patch=action_routes.cancel), name="job"),
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
    path("jobs/<str:job>/status", route(get=job_routes.status), name="job-status"),
    path("jobs/<str:job>/plan", route(get=job_routes.plan), name="job-plan"),
    path("jobs/<str:job>/config", route(get=job_routes.config), name="job-config"),
    path("jobs/<str:job>/exceptions", route(get=job_routes.exceptions), name="exceptions"),
    path("jobs/<str:job>/accumulators", route(get=job_routes.accumulators), name="accumulators"),
    path(
        "jobs/<str:job>/checkpoints",
        route(get=checkpoint_routes.statistics, post=action_routes.checkpoint),
        name="checkpoints",
    ),
    path(
        "jobs/<str:job>/checkpoints/config",
        route(get=checkpoint_routes.config),
        name="checkpoint-config",
    ),
    path(
        "jobs/<str:job>/checkpoints/<str:trigger>",
        route(get=action_routes.checkpoint_progress),
        name="checkpoint-progress",
    ),
    path(
        "jobs/<str:job>/checkpoints/details/<str:checkpoint>",
        route(get=checkpoint_routes.details),
        name="checkpoint",
    ),
    path(
        "jobs/<str:job>/checkpoints/details/<str:checkpoint>/subtasks/<str:vertex>",
        route(get=checkpoint_routes.subtasks),
        name="checkpoint-subtasks",
    ),
    path(
        "jobs/<str:job>/resource-requirements",
        route(get=job_routes.requirements, put=job_routes.requirements),
        name="requirements",
    ),
    path("jobs/<str:job>/rescaling", route(patch=job_routes.rescaling), name="rescaling"),
    path(
        "jobs/<str:job>/rescaling/<str:trigger>",
        route(get=job_routes.rescaling_progress),
        name="rescaling-progress",
    ),
    path(
        "jobs/<str:job>/clientHeartbeat",
        route(patch=action_routes.client_heartbeat),
        name="client-heartbeat",
    ),
    path("jobs/<str:job>/jobmanager/config", route(get=job_routes.settings), name="job-settings"),
]

_VERTEX = "jobs/<str:job>/vertices/<str:vertex>"
urlpatterns += [
    path(_VERTEX, route(get=vertex_routes.detail), name="vertex"),
    path(f"{_VERTEX}/backpressure", route(get=vertex_routes.backpressure), name="backpressure"),
    path(f"{_VERTEX}/subtasktimes", route(get=vertex_routes.times), name="subtask-times"),
    path(f"{_VERTEX}/taskmanagers", route(get=vertex_routes.task_managers), name="vertex-slots"),
    path(f"{_VERTEX}/watermarks", route(get=vertex_routes.watermarks), name="watermarks"),
    path(
        f"{_VERTEX}/accumulators", route(get=vertex_routes.accumulators), name="vertex-accumulators"
    ),
    path(f"{_VERTEX}/metrics", route(get=vertex_routes.all_metrics), name="vertex-metrics"),
    path(
        f"{_VERTEX}/subtasks/metrics", route(get=vertex_routes.subtask_metrics), name="aggregated"
    ),
    path(
        f"{_VERTEX}/subtasks/accumulators",
        route(get=subtask_routes.accumulators),
        name="subtasks-accumulators",
    ),
    path(f"{_VERTEX}/subtasks/<str:index>", route(get=subtask_routes.current), name="subtask"),
    path(
        f"{_VERTEX}/subtasks/<str:index>/attempts/<str:attempt>",
        route(get=subtask_routes.attempt),
        name="subtask-attempt",
    ),
    path(
        f"{_VERTEX}/subtasks/<str:index>/metrics",
        route(get=subtask_routes.all_metrics),
        name="subtask-metrics",
    ),
    path(
        f"{_VERTEX}/jm-operator-metrics",
        route(get=vertex_routes.operator_metrics),
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
"""Nothing else exists below a prefix of its own."""
