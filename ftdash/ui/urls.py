"""The addresses of the dashboard. All of them ask for a sign-in; acting asks for the admin role."""

from django.contrib.auth import views as auth_views
from django.urls import path

from ftdash.ui import (
    actions,
    before_restore,
    checkpoint_export,
    checkpoint_page,
    checkpoints_page,
    guarantee,
    lab,
    lineage_page,
    metrics_page,
    planner_page,
    recovery_page,
    settings_actions,
    settings_page,
    submission,
    views,
)

urlpatterns = [
    path("login/", auth_views.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("", views.fleet, name="fleet"),
    path("regions/", views.fleet_regions, name="fleet-regions"),
    path("events/", views.event_stream, name="events"),
    path("start/", submission.submit, name="submit"),
    path("lab/", lab.lab, name="lab"),
    path("lab/regions/", lab.lab_regions, name="lab-regions"),
    path("lab/start/", lab.start_lab, name="start-lab"),
    path("password/", settings_page.password, name="password"),
    path("settings/", settings_page.settings, name="settings"),
    path("settings/regions/", settings_page.settings_regions, name="settings-regions"),
    path("settings/<slug:action>/", settings_actions.act, name="settings-action"),
    path("pipelines/<slug:name>/", views.pipeline, name="pipeline"),
    path("pipelines/<slug:name>/regions/", views.pipeline_regions, name="pipeline-regions"),
    path("pipelines/<slug:name>/restore/verdict/", before_restore.verdict, name="verdict"),
    path("pipelines/<slug:name>/restore/reading/", before_restore.reading, name="reading"),
    path("pipelines/<slug:name>/metrics/", metrics_page.metrics, name="pipeline-metrics"),
    path(
        "pipelines/<slug:name>/metrics/regions/",
        metrics_page.metrics_regions,
        name="pipeline-metrics-regions",
    ),
    path("pipelines/<slug:name>/checkpoints/", checkpoints_page.page, name="checkpoints"),
    path(
        "pipelines/<slug:name>/checkpoints/regions/",
        checkpoints_page.regions,
        name="checkpoints-regions",
    ),
    path(
        "pipelines/<slug:name>/checkpoints/history.csv",
        checkpoint_export.as_csv,
        name="checkpoints-csv",
    ),
    path(
        "pipelines/<slug:name>/checkpoints/history.json",
        checkpoint_export.as_json,
        name="checkpoints-json",
    ),
    path(
        "pipelines/<slug:name>/checkpoints/<int:checkpoint_id>/",
        checkpoint_page.page,
        name="checkpoint",
    ),
    path(
        "pipelines/<slug:name>/checkpoints/<int:checkpoint_id>/regions/",
        checkpoint_page.regions,
        name="checkpoint-regions",
    ),
    path("pipelines/<slug:name>/guarantee/", guarantee.page, name="guarantee"),
    path("pipelines/<slug:name>/guarantee/regions/", guarantee.regions, name="guarantee-regions"),
    path("pipelines/<slug:name>/guarantee/audit/", guarantee.start_audit, name="guarantee-audit"),
    path("pipelines/<slug:name>/lineage/", lineage_page.page, name="lineage"),
    path("pipelines/<slug:name>/lineage/regions/", lineage_page.regions, name="lineage-regions"),
    path("pipelines/<slug:name>/recovery/", recovery_page.recovery, name="recovery"),
    path(
        "pipelines/<slug:name>/recovery/regions/",
        recovery_page.recovery_regions,
        name="recovery-regions",
    ),
    path("pipelines/<slug:name>/planner/", planner_page.planner, name="pipeline-planner"),
    path(
        "pipelines/<slug:name>/planner/regions/",
        planner_page.planner_regions,
        name="pipeline-planner-regions",
    ),
    path("pipelines/<slug:name>/<slug:action>/", actions.act, name="act"),
]
