"""The addresses of the dashboard. All need a sign-in; acting needs the admin role."""

from django.contrib.auth import views as auth_views
from django.urls import include, path

from ftdash.ui.actions import page, start_forms
from ftdash.ui.actions import page as actions
from ftdash.ui.alerts import page as alerts_page
from ftdash.ui.checkpoint import page as checkpoint_page
from ftdash.ui.checkpoints import page as checkpoints_page
from ftdash.ui.eventlog import page as event_log
from ftdash.ui.flink_clusters import page as flink_catalogue
from ftdash.ui.flink_clusters import page as flink_clusters
from ftdash.ui.gameday import page as game_day
from ftdash.ui.guarantee import page as guarantee
from ftdash.ui.incidents import page as incidents_page
from ftdash.ui.lab import page as lab
from ftdash.ui.lineage import page as lineage_page
from ftdash.ui.logs import page as logs_page
from ftdash.ui.metrics import page as metrics_page
from ftdash.ui.palette import page as palette_page
from ftdash.ui.pipelines import fleet_page
from ftdash.ui.pipelines import page as views
from ftdash.ui.planner import page as planner_page
from ftdash.ui.recovery import page as recovery_page
from ftdash.ui.savepoints import page as savepoints
from ftdash.ui.settings import page as settings_page
from ftdash.ui.sign_in.page import SignIn
from ftdash.ui.upgrades import page as upgrades_page
from ftdash.ui.watching import moving as query_moving
from ftdash.ui.watching import page as watching_page
from ftdash.ui.watching import works as query_works

urlpatterns = [
    path("login/", SignIn.as_view(), name="login"),
    path("", include("ftdash.ui.sign_in.page")),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("", fleet_page.fleet, name="fleet"),
    path("palette/", palette_page.palette, name="palette"),
    path("regions/", fleet_page.fleet_regions, name="fleet-regions"),
    path("views/", fleet_page.saved_views, name="saved-views"),
    path("views/save/", fleet_page.save_view, name="save-view"),
    path("views/<int:key>/", fleet_page.change_view, name="change-view"),
    path("changes/", views.event_stream, name="events"),
    path("events/", event_log.event_log, name="event-log"),
    path("events/csv/", event_log.as_csv, name="event-log-csv"),
    path("events/json/", event_log.as_json, name="event-log-json"),
    path("events/regions/", event_log.event_log_regions, name="event-log-regions"),
    path("start/", page.submit, name="submit"),
    path("watch/", watching_page.watch, name="watch-query"),
    path("watched/<slug:name>/", watching_page.query, name="watched-query"),
    path("watched/<slug:name>/regions/", watching_page.query_regions, name="watched-query-regions"),
    path("watched/<slug:name>/limits/", watching_page.limits, name="watched-query-limits"),
    path("watched/<slug:name>/remove/", watching_page.remove, name="remove-watched-query"),
    path("watched/<slug:name>/batches/<int:key>/", watching_page.batch, name="watched-batch"),
    path("watched/<slug:name>/take/", query_works.take, name="take-query-savepoint"),
    path("watched/<slug:name>/rewind/", query_works.rewind, name="rewind-query"),
    path("watched/<slug:name>/move/", query_moving.move, name="move-query"),
    path("watched/<slug:name>/move/start.json", query_moving.move_file, name="move-query-file"),
    path("watched/<slug:name>/state/", query_works.look_at_state, name="query-state"),
    path(
        "watched/<slug:name>/savepoints/<int:key>/",
        query_works.savepoint,
        name="query-savepoint",
    ),
    path(
        "watched/<slug:name>/savepoints/<int:key>/manifest/",
        query_works.manifest,
        name="query-savepoint-manifest",
    ),
    path(
        "watched/<slug:name>/savepoints/<int:key>/<slug:action>/",
        query_works.act_on_savepoint,
        name="query-savepoint-action",
    ),
    path("watched/<slug:name>/works/<int:key>/", query_works.work, name="query-work"),
    path(
        "watched/<slug:name>/works/<int:key>/regions/",
        query_works.work_regions,
        name="query-work-regions",
    ),
    path("watched/<slug:name>/works/<int:key>/fork/", query_works.fork, name="fork-query"),
    path("watch/flink/", flink_clusters.watch, name="watch-flink"),
    path("flink-clusters/<slug:name>/", flink_clusters.cluster, name="flink-cluster"),
    path(
        "flink-clusters/<slug:name>/regions/",
        flink_clusters.cluster_regions,
        name="flink-cluster-regions",
    ),
    path("flink-clusters/<slug:name>/points/", flink_catalogue.points, name="flink-points"),
    path("flink-clusters/<slug:name>/remove/", flink_clusters.remove, name="remove-flink-cluster"),
    path("flink-clusters/<slug:name>/jobs/<slug:jid>/", flink_clusters.job, name="flink-job"),
    path(
        "flink-clusters/<slug:name>/jobs/<slug:jid>/regions/",
        flink_clusters.job_regions,
        name="flink-job-regions",
    ),
    path(
        "flink-clusters/<slug:name>/jobs/<slug:jid>/checkpoints/<int:checkpoint_id>/",
        flink_clusters.checkpoint,
        name="flink-checkpoint",
    ),
    path(
        "flink-clusters/<slug:name>/jobs/<slug:jid>/checkpoints/<int:checkpoint_id>/regions/",
        flink_clusters.checkpoint_regions,
        name="flink-checkpoint-regions",
    ),
    path(
        "flink-clusters/<slug:name>/jobs/<slug:jid>/ask/<slug:action>/",
        flink_clusters.ask,
        name="ask-flink-job",
    ),
    path("lab/", lab.lab, name="lab"),
    path("lab/regions/", lab.lab_regions, name="lab-regions"),
    path("lab/start/", lab.start_lab, name="start-lab"),
    path("alerts/", alerts_page.alerts, name="alerts"),
    path("alerts/regions/", alerts_page.alerts_regions, name="alerts-regions"),
    path("incidents/", incidents_page.incidents, name="incidents"),
    path("incidents/regions/", incidents_page.incidents_regions, name="incidents-regions"),
    path("incidents/<int:key>/", incidents_page.incident, name="incident"),
    path("incidents/<int:key>/regions/", incidents_page.incident_regions, name="incident-regions"),
    path("incidents/<int:key>/note/", incidents_page.add_note, name="incident-note"),
    path("incidents/<int:key>/post-mortem/", incidents_page.post_mortem, name="post-mortem"),
    path("password/", settings_page.password, name="password"),
    path("settings/", settings_page.settings, name="settings"),
    path("settings/regions/", settings_page.settings_regions, name="settings-regions"),
    path("sessions/<int:key>/end/", settings_page.end_own_session, name="end-own-session"),
    path("settings/<slug:action>/", settings_page.act, name="settings-action"),
    path("game-day/", game_day.game_days, name="game-days"),
    path("game-day/regions/", game_day.game_days_regions, name="game-days-regions"),
    path("game-day/<int:key>/", game_day.game_day, name="game-day"),
    path("game-day/<int:key>/regions/", game_day.game_day_regions, name="game-day-regions"),
    path("pipelines/<slug:name>/", views.pipeline, name="pipeline"),
    path("pipelines/<slug:name>/regions/", views.pipeline_regions, name="pipeline-regions"),
    path("pipelines/<slug:name>/labels/", fleet_page.labels, name="pipeline-labels"),
    path("pipelines/<slug:name>/restore/verdict/", start_forms.verdict, name="verdict"),
    path("pipelines/<slug:name>/restore/reading/", start_forms.reading, name="reading"),
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
        checkpoints_page.as_csv,
        name="checkpoints-csv",
    ),
    path(
        "pipelines/<slug:name>/checkpoints/history.json",
        checkpoints_page.as_json,
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
    path(
        "pipelines/<slug:name>/checkpoints/<int:checkpoint_id>/subtasks.csv",
        checkpoint_page.subtasks_csv,
        name="checkpoint-subtasks-csv",
    ),
    path("pipelines/<slug:name>/logs/", logs_page.page, name="logs"),
    path("pipelines/<slug:name>/logs/regions/", logs_page.regions, name="logs-regions"),
    path("pipelines/<slug:name>/guarantee/", guarantee.page, name="guarantee"),
    path("pipelines/<slug:name>/guarantee/regions/", guarantee.regions, name="guarantee-regions"),
    path("pipelines/<slug:name>/guarantee/audit/", guarantee.start_audit, name="guarantee-audit"),
    path("pipelines/<slug:name>/game-day/", game_day.game_days, name="pipeline-game-days"),
    path(
        "pipelines/<slug:name>/game-day/regions/",
        game_day.game_days_regions,
        name="pipeline-game-days-regions",
    ),
    path("pipelines/<slug:name>/game-day/start/", game_day.start_game_day, name="start-game-day"),
    path("pipelines/<slug:name>/lineage/", lineage_page.page, name="lineage"),
    path("pipelines/<slug:name>/lineage/regions/", lineage_page.regions, name="lineage-regions"),
    path("pipelines/<slug:name>/upgrades/<str:request_id>/", upgrades_page.upgrade, name="upgrade"),
    path(
        "pipelines/<slug:name>/upgrades/<str:request_id>/regions/",
        upgrades_page.upgrade_regions,
        name="upgrade-regions",
    ),
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
    path("pipelines/<slug:name>/savepoints/", savepoints.savepoints, name="savepoints"),
    path(
        "pipelines/<slug:name>/savepoints/regions/",
        savepoints.savepoints_regions,
        name="savepoints-regions",
    ),
    path("savepoints/<slug:savepoint_key>/", savepoints.savepoint, name="savepoint"),
    path(
        "savepoints/<slug:savepoint_key>/regions/",
        savepoints.savepoint_regions,
        name="savepoint-regions",
    ),
    path("savepoints/<slug:savepoint_key>/restore/", savepoints.restore_into, name="restore-into"),
    path("savepoints/<slug:savepoint_key>/verify/", savepoints.verify, name="verify-savepoint"),
    path(
        "savepoints/<slug:savepoint_key>/verification/",
        savepoints.verification,
        name="verification",
    ),
    path(
        "savepoints/<slug:savepoint_key>/holds/",
        savepoints.operators,
        name="savepoint-holds",
    ),
    path("savepoints/<slug:savepoint_key>/state/", savepoints.rows, name="savepoint-state"),
    path(
        "savepoints/<slug:savepoint_key>/compare/",
        savepoints.compare,
        name="compare-savepoints",
    ),
    path(
        "savepoints/<slug:savepoint_key>/compare/start/",
        savepoints.start_comparison,
        name="start-comparison",
    ),
    path(
        "savepoints/<slug:savepoint_key>/compare/progress/",
        savepoints.progress,
        name="comparison-progress",
    ),
    path(
        "savepoints/<slug:savepoint_key>/shelf-life/",
        savepoints.shelf_life,
        name="shelf-life",
    ),
    path(
        "savepoints/<slug:savepoint_key>/manifest/",
        savepoints.manifest,
        name="savepoint-manifest",
    ),
    path("pipelines/<slug:name>/<slug:action>/", actions.act, name="act"),
]
