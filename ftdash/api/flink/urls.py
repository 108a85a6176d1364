"""Flink's addresses: as its web page asks for them, and below `v1/` as its command line does."""

from django.urls import path, re_path

from ftdash.api.flink import checkpoint_routes, cluster_routes, job_routes
from ftdash.api.flink.http import nothing_here, route

app_name = "flink"

urlpatterns = [
    path("config", route(get=cluster_routes.config), name="config"),
    path("overview", route(get=cluster_routes.overview), name="overview"),
    path("applications/overview", route(get=cluster_routes.applications), name="applications"),
    path("jobs", route(get=job_routes.ids), name="jobs"),
    path("jobs/overview", route(get=job_routes.overview), name="jobs-overview"),
    path("jobs/<str:job>", route(get=job_routes.detail), name="job"),
    path("jobs/<str:job>/status", route(get=job_routes.status), name="job-status"),
    path("jobs/<str:job>/plan", route(get=job_routes.plan), name="job-plan"),
    path("jobs/<str:job>/config", route(get=job_routes.config), name="job-config"),
    path("jobs/<str:job>/exceptions", route(get=job_routes.exceptions), name="exceptions"),
    path("jobs/<str:job>/accumulators", route(get=job_routes.accumulators), name="accumulators"),
    path("jobs/<str:job>/checkpoints", route(get=checkpoint_routes.statistics), name="checkpoints"),
    path(
        "jobs/<str:job>/checkpoints/config",
        route(get=checkpoint_routes.config),
        name="checkpoint-config",
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
    path("jobs/<str:job>/jobmanager/config", route(get=job_routes.settings), name="job-settings"),
]

versioned = [*urlpatterns, re_path(r"^.*$", route(get=nothing_here), name="nothing")]
"""Below a prefix of their own nothing else is to be found."""
