"""Mutants: the dashboard, its users and programs, alerts and game days."""

from tests.mutants.mutant import Mutant

SAVED = "tests/web/test_watched_savepoints.py"
FLINK = "tests/web/test_watched_flink.py"
FLINK_WORK = "tests/web/test_flink_work.py"
DEPLOYED = "tests/web/test_deployment.py"
PROJECTED = "tests/web/test_projector.py"
TOLD = "tests/web/test_telemetry.py"
STARTING = "tests/web/test_starting.py"
TROUBLED = "tests/web/test_watched_incidents.py"
FLINK_TROUBLED = "tests/web/test_watched_flink_incidents.py"

CONTROL_PLANE: dict[str, tuple[Mutant, ...]] = {
    (
        "a process of an installation that could not work ends at its start, with one line that"
        " says what cures it"
    ): (
        Mutant(
            "ftdash/deployment/starting.py",
            "doctor.migrations, doctor.key_in_use)",
            "doctor.migrations)",
            f"{STARTING}::test_a_sound_installation_starts_and_each_broken_part_prevents_it",
        ),
        Mutant(
            "ftdash/deployment/starting.py",
            "if name in (WORKER, BEAT):",
            "if name == WORKER:",
            f"{STARTING}::test_only_a_part_that_a_process_needs_prevents_its_start",
        ),
        Mutant(
            "ftdash/__main__.py",
            "except ImproperlyConfigured as problem:",
            "except KeyError as problem:",
            f"{STARTING}::test_an_invalid_setting_ends_each_process_with_one_line",
        ),
    ),
    (
        "people notice nothing if one of two web servers is killed: no request fails, sessions and"
        " event streams continue"
    ): (
        Mutant(
            "docs/how-to/container/Caddyfile",
            "lb_try_duration 5s",
            "lb_try_duration 0",
            "tests/web/test_two_servers.py"
            "::test_people_notice_nothing_when_one_of_two_servers_is_killed",
        ),
    ),
    (
        "a web server is ready only while the projector has read every event that is older than the"
        " bound"
    ): (
        Mutant(
            "ftdash/deployment/health.py",
            "found = doctor.projector(seen.projector), doctor.journals(seen)",
            "found = (doctor.projector(seen.projector),)",
            f"{DEPLOYED}::test_a_server_is_ready_once_the_projector_has_read_all_old_events",
        ),
        Mutant(
            "ftdash/projection/projector.py",
            "min((each for each in unread if each is not None)",
            "max((each for each in unread if each is not None)",
            f"{PROJECTED}"
            "::test_the_heartbeat_has_the_time_of_the_oldest_event_that_no_round_has_read",
        ),
        Mutant(
            "ftdash/projection/projector.py",
            "= map(_unread_since, runs)",
            "= map(_unread_since, Run.objects.all())",
            f"{PROJECTED}::test_a_stopped_projection_does_not_count_as_lag",
        ),
    ),
    "of processes that start together on a new home, all have the same secret key": (
        Mutant(
            "ftdash/settings.py",
            "        create_if_absent(path, make().encode())",
            "        path.touch(0o600)\n        path.write_text(make())",
            f"{STARTING}::test_processes_that_start_together_have_one_secret_key",
        ),
    ),
    "code of a pipeline starts with allowed variables, and with no secret of the control plane": (
        Mutant(
            "ftdash/jobs/author_environment.py",
            " and any(fnmatchcase(name, each) for each in passed)",
            "",
            "tests/web/test_author_environment.py::test_only_allowed_variables_pass",
        ),
        Mutant(
            "ftdash/jobs/author_environment.py",
            "name not in settings.NEVER_PASSED and ",
            "",
            (
                "tests/web/test_author_environment.py::"
                "test_a_secret_does_not_pass_even_if_a_pattern_matches"
            ),
        ),
        Mutant(
            "ftdash/supervision/launcher.py",
            "        RUN_ID_VARIABLE: run.run_id,",
            '        RUN_ID_VARIABLE: run.run_id, "FTDASH_REDIS_URL": settings.REDIS_URL,',
            (
                "tests/web/test_author_environment.py::"
                "test_a_driver_starts_without_secrets_and_reads_the_redis_address_once"
            ),
        ),
    ),
    "no service of systemd is root, only root reads the secrets, a driver outlives its worker": (
        Mutant(
            "ftdash/deployment/units.py",
            '"account": server.account,',
            '"account": "root",',
            f"{DEPLOYED}::test_no_process_runs_as_root_and_each_gets_the_secrets_that_it_needs",
        ),
        Mutant(
            "ftdash/deployment/units.py",
            "PRIVATE = 0o600",
            "PRIVATE = 0o644",
            f"{DEPLOYED}::test_only_root_reads_the_environment_file_which_is_never_replaced",
        ),
        Mutant(
            "ftdash/deployment/units.py",
            'STARTS_DRIVERS = "worker"',
            'STARTS_DRIVERS = "web"',
            f"{DEPLOYED}::test_a_driver_outlives_the_worker_that_started_it",
        ),
    ),
    "a line of the log has the request that it belongs to, in the worker too, and no secret": (
        Mutant(
            "ftdash/logs.py",
            "if headers is not None and _request.get():",
            "if False:",
            f"{TOLD}::test_the_log_of_a_worker_has_the_id_of_the_request_that_sent_the_errand",
        ),
        Mutant(
            "ftdash/logs.py",
            '"message": masked(record.getMessage()),',
            '"message": record.getMessage(),',
            f"{TOLD}::test_a_log_record_is_one_json_line_without_secrets",
        ),
    ),
    "a checkpoint and a recovery are one span each; rows that are built again send none": (
        Mutant(
            "ftdash/telemetry.py",
            "if traced is None or time.time() * 1000 - end_ms > OLDEST_MS:",
            "if traced is None:",
            f"{TOLD}::test_old_checkpoints_send_no_span",
        ),
        Mutant(
            "ftdash/telemetry.py",
            'self._span("JobInitialization", end_ms - lasted_ms, end_ms, said)',
            'self._span("JobInitialization", end_ms, end_ms, said)',
            f"{TOLD}::test_a_receiver_gets_the_spans_of_requests_checkpoints_and_recoveries",
        ),
    ),
    "a secret comes from one place; a file for it that cannot be read ends the start": (
        Mutant(
            "ftdash/settings.py",
            "    if value and file:\n",
            "    if False:\n",
            f"{STARTING}::test_a_secret_given_twice_or_missing_is_an_error",
        ),
    ),
    "the company's sign-in gives the role of today's groups, and opens no local account": (
        Mutant(
            "ftdash/accounts/company.py",
            "if role_of(user) is not role:",
            "if False:",
            "tests/web/test_company_sign_in.py::test_the_current_groups_decide_the_role",
        ),
        Mutant(
            "ftdash/accounts/company.py",
            "            end_sessions(account.user)\n",
            "            pass\n",
            (
                "tests/web/test_company_sign_in.py"
                "::test_a_person_who_lost_all_groups_is_refused_and_signed_out_elsewhere"
            ),
        ),
        Mutant(
            "ftdash/accounts/company.py",
            "filter(username__iexact=identity.name).exists()",
            "filter(username=identity.name).exists()",
            (
                "tests/web/test_company_sign_in.py"
                "::test_a_company_name_does_not_open_a_local_account_of_that_name"
            ),
        ),
        Mutant(
            "ftdash/accounts/company.py",
            "!= AuthProcess.LOGIN:",
            "is None:",
            (
                "tests/web/test_company_sign_in.py"
                "::test_a_link_that_asks_for_more_than_a_sign_in_is_refused"
            ),
        ),
    ),
    "a header names a person only if a trusted proxy sent it": (
        Mutant(
            "ftdash/asgi.py",
            "if self._naming and not is_trusted and",
            "if False and",
            (
                "tests/web/test_proxy_sign_in.py"
                "::test_the_header_is_dropped_unless_a_trusted_proxy_sends_it"
            ),
        ),
        Mutant(
            "ftdash/asgi.py",
            '.replace(b"_", b"-") in self._naming',
            " in self._naming",
            (
                "tests/web/test_proxy_sign_in.py"
                "::test_the_header_is_dropped_unless_a_trusted_proxy_sends_it"
            ),
        ),
        Mutant(
            "ftdash/accounts/authentication.py",
            "        if opened_for is not None:\n            logout(request)\n        elif",
            "        if",
            (
                "tests/web/test_proxy_sign_in.py"
                "::test_a_session_lasts_only_while_the_proxy_names_its_user"
            ),
        ),
    ),
    "a required second factor comes before any other page": (
        Mutant(
            "ftdash/accounts/second_factor.py",
            "        for user in _without_one():\n            end_sessions(user)\n",
            "",
            (
                "tests/web/test_second_factor.py"
                "::test_a_required_second_factor_applies_to_everyone_with_a_password"
            ),
        ),
        Mutant(
            "ftdash/accounts/authentication.py",
            "    second_factor.note_missing(request, user)\n    note_session",
            "    note_session",
            (
                "tests/web/test_second_factor.py"
                "::test_a_required_second_factor_applies_to_everyone_with_a_password"
            ),
        ),
    ),
    "a code of a second factor is used once, and wrong ones are counted, over all web servers": (
        Mutant(
            "ftdash/settings.py",
            '"BACKEND": "ftdash.accounts.shared_cache.SharedCache"',
            '"BACKEND": "django.core.cache.backends.locmem.LocMemCache"',
            (
                "tests/web/test_shared_cache.py"
                "::test_two_web_servers_refuse_a_code_twice_and_count_wrong_ones_together[sqlite]"
            ),
        ),
        Mutant(
            "ftdash/accounts/shared_cache.py",
            ".select_for_update().first()\n            if",
            ".first()\n            if",
            (
                "tests/web/test_shared_cache.py"
                "::test_one_of_many_adds_a_key_and_no_count_is_lost[postgresql]"
            ),
        ),
        Mutant(
            "ftdash/accounts/second_factor.py",
            "* (2 * app_settings.TOTP_TOLERANCE + 1)",
            "",
            "tests/web/test_second_factor.py::test_a_used_code_is_refused_as_long_as_it_is_valid",
        ),
    ),
    "a request to a pipeline or for a game day, stored or refused, has one entry in the log": (
        Mutant(
            "ftdash/gameday/services.py",
            "        record_request(\n",
            "        dict(\n",
            "tests/web/test_game_days.py::test_a_game_day_has_one_entry_in_the_audit_log",
        ),
        Mutant(
            "ftdash/gameday/services.py",
            "        record_refusal(\n",
            "        dict(\n",
            (
                "tests/web/test_game_days.py"
                "::test_a_game_day_with_an_invalid_target_or_reason_is_refused"
            ),
        ),
        Mutant(
            "ftdash/requests/storing.py",
            "    record_request(\n",
            "    dict(\n",
            "tests/web/test_audit_log.py::test_a_stored_request_has_one_entry_in_the_chain",
        ),
        Mutant(
            "ftdash/requests/storing.py",
            "        record_refusal(\n",
            "        dict(\n",
            "tests/web/test_audit_log.py::test_a_refused_request_has_an_entry_with_the_refusal",
        ),
        Mutant(
            "ftdash/accounts/queries.py",
            "if each not in logged)",
            "if not each)",
            "tests/web/test_audit_log.py::test_a_request_without_an_entry_is_named",
        ),
    ),
    "a backup that is taken during writes is whole, and what is newer is folded again": (
        Mutant(
            "ftdash/deployment/backups.py",
            "            source.backup(copy)\n",
            "            shutil.copyfile(connection.settings_dict['NAME'], target)\n",
            (
                "tests/web/test_backups.py"
                "::test_a_backup_during_writes_is_whole_and_catches_up_from_the_journals[sqlite]"
            ),
        ),
    ),
    "no entry of the audit log is changed or removed unnoticed": (
        Mutant(
            "ftdash/accounts/audit_chain.py",
            "if entry.previous != before:",
            "if False:",
            "tests/web/test_audit_log.py::test_the_entry_after_a_removed_one_is_named",
        ),
        Mutant(
            "ftdash/accounts/audit_chain.py",
            "entry.detail, entry.reason, entry.refusal)",
            "entry.reason, entry.refusal)",
            "tests/web/test_audit_log.py::test_a_changed_entry_is_named",
        ),
        Mutant(
            "ftdash/accounts/services.py",
            "entry.previous = newest or BEGINNING",
            "entry.previous = BEGINNING",
            "tests/web/test_audit_log.py::test_each_entry_holds_the_digest_of_the_one_before",
        ),
    ),
    (
        "a package of an author is not deleted while a pipeline, a run, an upgrade or a recovery"
        " point names it"
    ): (
        Mutant(
            "ftdash/upgrades/packages.py",
            "points.filter(run__code__sha256=code.sha256)",
            "points.filter(run__code__sha256='')",
            (
                "tests/web/test_package_retention.py::test_a_package_stays_while_something_names_it"
                "[point]"
            ),
        ),
        Mutant(
            "ftdash/upgrades/packages.py",
            "unneeded = [each for each in old if not needed_by(each)]",
            "unneeded = old",
            (
                "tests/web/test_package_retention.py::"
                "test_the_sweep_deletes_unneeded_packages_but_leaves_new_ones"
            ),
        ),
        Mutant(
            "ftdash/upgrades/packages.py",
            "now_s - store.added_s(each) > KEPT_NEW_S",
            "True",
            (
                "tests/web/test_package_retention.py::"
                "test_the_sweep_deletes_unneeded_packages_but_leaves_new_ones"
            ),
        ),
    ),
    (
        "an upgrade ends with the new code running, or the code before running from the same"
        " savepoint, and the output is exact, whatever process dies"
    ): (
        Mutant(
            "ftdash/upgrades/services.py",
            '_started(row, "back", row.old_code)',
            '_started(row, "back", row.new_code)',
            (
                "tests/web/test_upgrades.py::"
                "test_an_upgrade_goes_back_to_the_previous_code_when_the_new_run_fails"
            ),
        ),
        Mutant(
            "ftdash/upgrades/services.py",
            "run=run, attempt=run.attempt, status__in=COMPLETE",
            "run=run, status__in=COMPLETE",
            (
                "tests/web/test_upgrades.py::test_checkpoints_of_an_attempt_that_has_failed_do_not"
                "_count"
            ),
        ),
        Mutant(
            "ftdash/upgrades/services.py",
            "done.count() if status is JobStatus.RUNNING else 0",
            "done.count()",
            "tests/web/test_upgrades.py::test_a_restarting_attempt_does_not_count_as_running",
        ),
        Mutant(
            "ftdash/upgrades/decision.py",
            "    if new is None or not new.status.is_terminal:",
            "    if new is None:",
            (
                "tests/web/test_upgrades.py::"
                "test_an_upgrade_cancels_a_new_run_with_too_few_checkpoints_in_time"
            ),
        ),
        Mutant(
            "ftdash/upgrades/services.py",
            'return str(uuid.uuid5(_OF_UPGRADES, f"{row.request.request_id}/{name}"))',
            "return str(uuid.uuid4())",
            "tests/web/test_upgrades.py::test_each_step_is_repeated_without_effect",
        ),
        Mutant(
            "ftdash/upgrades/services.py",
            '_started(row, "start", row.new_code)',
            '_started(row, "start", row.old_code)',
            "tests/processes/test_upgrades.py::test_the_output_is_exact_over_an_upgrade[driver]",
        ),
    ),
    "a metric of an author's function fails no run, is in no snapshot, and its names are bounded": (
        Mutant(
            "pipelines/operators/user_metrics.py",
            "        if len(self._metrics) >= METRICS_MAX:",
            "        if False:",
            "tests/unit/operators/test_user_metrics.py::test_the_number_of_metric_names_is_bounded",
        ),
        Mutant(
            "pipelines/operators/user_metrics.py",
            "    except Exception as error:  # an author's code",
            "    except ValueError as error:  # an author's code",
            (
                "tests/unit/operators/test_user_metrics.py::"
                "test_a_gauge_gives_a_number_or_the_reason_why_not"
            ),
        ),
        Mutant(
            "pipelines/operators/user_metrics.py",
            "self._newest[self.count % HISTOGRAM_VALUES] = value",
            "pass",
            (
                "tests/unit/operators/test_user_metrics.py::test_a_histogram_describes_its_newest_"
                "values"
            ),
        ),
    ),
    "a run's log is bounded and slows no subtask; what is dropped is counted": (
        Mutant(
            "pipelines/bus/run_log.py",
            "self._path(old).unlink(missing_ok=True)",
            "pass",
            (
                "tests/unit/bus/test_run_log.py::test_a_log_keeps_a_bounded_number_of_files_of_bounded_size"
            ),
        ),
        Mutant(
            "pipelines/runtime/logged_lines.py",
            "self._dropped += 1",
            "pass",
            (
                "tests/unit/bus/test_run_log.py::"
                "test_a_slot_that_logs_too_much_drops_lines_and_counts_them"
            ),
        ),
    ),
    "a revealed secret is in no log, journal, page or snapshot": (
        Mutant(
            "pipelines/domain/texts.py",
            "    for secret in sorted(_revealed, key=len, reverse=True):",
            "    for secret in sorted(_revealed, key=len):",
            "tests/unit/domain/test_masking.py::test_a_secret_that_contains_another_is_masked_whole",
        ),
        Mutant(
            "pipelines/stream/parameters.py",
            "            mask_logs()",
            "            pass",
            (
                "tests/unit/stream/test_declaration.py::test_a_revealed_secret_is_in_no_log_and_in"
                "_no_error_of_the_build"
            ),
        ),
        Mutant(
            "pipelines/runtime/slot/subtask_reports.py",
            "detail=masked(_traceback_of(error)),",
            "detail=_traceback_of(error),",
            (
                "tests/unit/runtime/subtask/test_author_errors.py::test_a_revealed_secret_is_in_no"
                "_part_of_the_report"
            ),
        ),
        Mutant(
            "pipelines/stream/parameters.py",
            "        if remember_secret(value):",
            "        if False:",
            "tests/processes/test_secrets.py::test_no_file_and_no_log_holds_the_secret",
        ),
    ),
    "a record's values leave a slot only if the settings say so": (
        Mutant(
            "pipelines/runtime/slot/subtask_reports.py",
            "if not self._shows_records or not",
            "if not",
            (
                "tests/unit/runtime/subtask/test_author_errors.py::test_the_record_leaves_the_slot"
                "_only_if_the_settings_say_so"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/chains/exchange.py",
            "        if not self._shows_keys:\n            return None\n",
            "        self._shows_keys = True\n",
            (
                "tests/unit/runtime/subtask/test_key_sampling.py::"
                "test_without_the_setting_the_sampler_reports_no_key_values"
            ),
        ),
    ),
    (
        "a soak notices each row that is lost, doubled or altered, and each figure that grows"
        " beyond its bound"
    ): (
        Mutant(
            "bench/soak/answers.py",
            "        self.lost |= self.seen - by_name.keys()\n",
            "",
            "tests/unit/test_soak.py::test_a_row_that_disappears_counts_as_lost_even_if_it_returns",
        ),
        Mutant(
            "bench/soak/answers.py",
            "if times > 1}",
            "if times > 2}",
            "tests/unit/test_soak.py::test_a_row_that_is_lost_doubled_or_altered_is_noticed",
        ),
        Mutant(
            "bench/soak/answers.py",
            "return is_fed and row == self.answer.row_of(name)",
            "return is_fed",
            "tests/unit/test_soak.py::test_a_row_that_is_lost_doubled_or_altered_is_noticed",
        ),
        Mutant(
            "bench/soak/slopes.py",
            "is_flat = bound is None or per_hour - SURE * error <= bound",
            "is_flat = True",
            "tests/unit/test_soak.py::test_memory_that_grows_beyond_its_bound_is_not_flat",
        ),
    ),
    (
        "each scenario of failure and each fault of a game day is caused by the soak, or shown by a"
        " named test"
    ): (
        Mutant(
            "bench/soak/scenarios.py",
            '    "KILL_SLOT_OPENED": Fault.SLOT_KILLED_OPENED,\n',
            "",
            "tests/unit/test_soak_scenarios.py"
            "::test_every_fault_of_a_game_day_is_a_fault_of_the_soak",
        ),
        Mutant(
            "bench/soak/scenarios.py",
            '"KILL_DRIVER_REWOUND": Fault.DRIVER_KILLED_REWOUND',
            '"KILL_DRIVER_REWOUND": Fault.DRIVER_KILLED_REWINDING',
            "tests/unit/test_soak_scenarios.py"
            "::test_a_kill_at_a_moment_comes_at_the_same_moment_in_the_soak",
        ),
        Mutant(
            "bench/soak/faults.py",
            "    Fault.SERVERS_LATE: servers_late,\n",
            "",
            "tests/unit/test_soak_scenarios.py"
            "::test_every_kind_of_fault_can_be_caused_and_belongs_to_a_scenario",
        ),
    ),
    "the page of all pipelines names the cause of an incident and offers the next step": (
        Mutant(
            "ftdash/incidents/causes.py",
            '(("execution.poison-records.policy", "quarantine"),)',
            '(("execution.poison-records.policy", "fail"),)',
            (
                "tests/bench/test_drill.py"
                "::test_the_fleet_page_names_each_incident_and_its_next_step"
            ),
        ),
    ),
    (
        "a process that is late on a busy machine is not called silent; one that reports "
        "nothing for eight seconds is"
    ): (
        Mutant(
            "ftdash/settings.py",
            "SILENT_AFTER_S = 8.0",
            "SILENT_AFTER_S = 3.0",
            "tests/web/test_honesty.py::test_a_process_that_is_late_on_a_busy_machine_is_not_silent_yet",
        ),
        Mutant(
            "ftdash/runs/queries/freshness.py",
            "if is_lost(run) or silent_for > timedelta(seconds=settings.SILENT_AFTER_S):",
            "if is_lost(run):",
            "tests/web/test_queries.py"
            "::test_a_silent_driver_makes_its_pipeline_stale_within_seconds",
        ),
    ),
    "a driver whose clock was set, ahead or back, is named for that, and not called silent": (
        Mutant(
            "ftdash/projection/projector.py",
            "return max(0.0, written.st_mtime - newest.at_ms / 1000)",
            "return 0.0",
            "tests/web/test_clock_steps.py"
            "::test_a_driver_whose_clock_was_set_back_is_reported_as_clock_off",
        ),
        Mutant(
            "ftdash/projection/projector.py",
            "if segment.base + written.st_size != offset:",
            "if False:",
            "tests/web/test_clock_steps.py"
            "::test_a_journal_read_late_does_not_count_as_a_clock_difference",
        ),
    ),
    "a run whose points do not fit its code fails before it waits for slots": (
        Mutant(
            "pipelines/runtime/master/start/run_opening.py",
            "return not any(_may_fit(fit, context, point) for point in points)",
            "return False",
            "tests/unit/runtime/master/test_driving.py"
            "::test_a_run_whose_points_do_not_fit_its_code_fails_before_it_waits_for_slots",
        ),
    ),
    (
        "a refresh takes no button away from under the cursor, and shows the change once the cursor"
        " has gone"
    ): (
        Mutant(
            "static/js/live.js",
            "return Boolean(lost);",
            "return false;",
            "tests/web/test_browser.py"
            "::test_a_button_under_the_cursor_stays_until_the_cursor_leaves",
        ),
    ),
    (
        "one subtask that has most of the work is named, and a healthy pipeline under load raises"
        " nothing"
    ): (
        Mutant(
            "ftdash/metrics/load_rules.py",
            "others > OTHERS_UP_TO * means[worst]",
            "others > means[worst]",
            "tests/unit/metrics/test_load_rules.py::"
            "test_a_healthy_pipeline_under_load_has_no_finding",
        ),
        Mutant(
            "ftdash/metrics/load_rules.py",
            "worst = max(means, key=lambda subtask: means[subtask])",
            "worst = min(means, key=lambda subtask: means[subtask])",
            "tests/unit/metrics/test_load_rules.py::"
            "test_a_busy_subtask_with_idle_neighbours_is_named_with_its_key_group",
        ),
    ),
    "the sentence on a checkpoint blames the subtask in whose queue the barrier stood": (
        Mutant(
            "ftdash/checkpoints/answers.py",
            "return self.queued_ms >= self.phase_ms / 2",
            "return False",
            "tests/web/test_ui_figures.py::"
            "test_a_barrier_in_the_slow_subtasks_own_queue_is_not_blamed_on_the_sender",
        ),
    ),
    (
        "every cause has a button or a command as its next step, and names only settings that exist"
    ): (
        Mutant(
            "ftdash/incidents/causes.py",
            "        steps=(ACCEPT_GAP,),\n",
            "",
            "tests/web/test_incidents.py::test_every_cause_has_a_button_or_a_command",
        ),
        Mutant(
            "ftdash/incidents/causes.py",
            "execution.poison-records.policy: quarantine",
            "pipeline.quarantine.policy: quarantine",
            "tests/web/test_incidents.py::"
            "test_settings_named_in_advice_exist_and_accept_the_given_values",
        ),
    ),
    "building a pipeline contacts no server, and a start asks every target": (
        Mutant(
            "pipelines/stream/environment.py",
            "                sink.check_columns(schema)",
            "                sink.validate(schema)  # type: ignore[attr-defined]",
            "tests/unit/connectors/test_building.py::test_building_with_a_sink_contacts_nothing",
        ),
        Mutant(
            "pipelines/stream/pipeline.py",
            "                sink.validate(schema)",
            "                pass",
            "tests/unit/connectors/test_building.py::test_a_start_contacts_the_target",
        ),
    ),
    "a slot runs the code that the run's manifests name, whatever is installed under its name": (
        Mutant(
            "pipelines/packages/loading.py",
            "    if found != code.sha256:",
            "    if False:",
            (
                "tests/unit/runtime/slot/test_sent_code.py::"
                "test_a_slot_refuses_a_wheel_with_the_right_name_but_other_code"
            ),
        ),
        Mutant(
            "pipelines/packages/loading.py",
            "        sys.meta_path.insert(0, self)",
            "        sys.meta_path.append(self)",
            (
                "tests/unit/packages/test_loading.py::"
                "test_the_shipped_code_runs_even_if_an_installed_copy_was_imported"
            ),
        ),
        Mutant(
            "pipelines/packages/loading.py",
            "    return {name: sys.modules.pop(name) for name in found}",
            "    return {name: sys.modules[name] for name in found}",
            (
                "tests/unit/runtime/slot/test_sent_code.py::test_a_slot_does_not_run_an_installed_p"
                "ackage_of_the_same_name"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "        code=context.spec.code,",
            "        code=None,",
            (
                "tests/integration/test_shipped_code.py::test_a_package_runs_in_every_slot_without_"
                "being_installed"
            ),
        ),
    ),
    "on a cluster, slots run the engine of their driver, whatever is installed where they run": (
        Mutant(
            "pipelines/packages/wheel.py",
            'if flow.startswith("pipelines.")]',
            'if flow == "pipelines."]',
            (
                "tests/unit/packages/test_engine.py::"
                "test_the_archive_alone_holds_the_slot_and_the_declared_pipelines"
            ),
        ),
        Mutant(
            "pipelines/spark/stage.py",
            "    sent = [] if is_one_machine(master) else [FILE]",
            "    sent: list[str] = []",
            (
                "tests/integration/test_standalone_cluster.py::test_a_lost_executor_and_a_lost_worke"
                "r_change_nothing_in_the_output"
            ),
        ),
    ),
    "one broken pipeline of an author stops no other, and its error names the author's line": (
        Mutant(
            "pipelines/flows/finding.py",
            "    except (Exception, SystemExit) as error:",
            "    except ImportError as error:",
            (
                "tests/unit/flows/test_finding.py::"
                "test_an_error_in_the_authors_module_is_reported_with_its_traceback"
            ),
        ),
        Mutant(
            "pipelines/stream/declaration.py",
            "begin = each.tb_next",
            "pass",
            (
                "tests/unit/stream/test_declaration.py::"
                "test_an_exception_of_the_author_becomes_a_sentence_with_its_traceback"
            ),
        ),
        Mutant(
            "ftdash/ui/actions/page.py",
            "    except Rejected as problem:",
            "    except MemoryError as problem:",
            (
                "tests/web/test_own_flows.py::"
                "test_a_broken_pipeline_shows_its_traceback_and_does_not_block_the_others"
            ),
        ),
    ),
    "an alert fires once and clears once, over restarts and two workers": (
        Mutant(
            "ftdash/alerts/hysteresis.py",
            "if now_s - rising.since_s < band.fire_after_s:",
            "if False:",
            (
                "tests/unit/alerts/test_hysteresis.py::"
                "test_an_alert_fires_and_clears_exactly_when_the_history_requires_it"
            ),
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            "    if now <= row.at <= timezone.now():\n        return False\n",
            "",
            "tests/web/test_alert_evaluation.py::test_late_readings_are_not_judged",
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            "        _keep_standings(judged)\n",
            "",
            "tests/web/test_alert_evaluation.py::test_an_alert_fires_once_and_clears_once",
        ),
    ),
    (
        "a silence loses no message: an alert that still fires afterwards is sent then, and no end"
        " is sent without its beginning"
    ): (
        Mutant(
            "ftdash/alerts/evaluation.py",
            "        if not alert.is_sent and silence_of(alert, silent) is None:\n",
            "        if False:\n",
            (
                "tests/web/test_alerts_and_incidents.py::"
                "test_no_silence_loses_a_message_or_sends_an_end_without_a_beginning"
            ),
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            " and alert.is_sent:",
            ":",
            (
                "tests/web/test_alerts_and_incidents.py::test_an_alert_that_clears_under_a_silence_"
                "sends_nothing_at_all"
            ),
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            " and each.pipeline_id in (None, alert.pipeline_id)",
            "",
            (
                "tests/web/test_alerts_and_incidents.py::"
                "test_a_silence_of_another_rule_or_pipeline_holds_nothing_back"
            ),
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            "        if each.query_id is None and each.flink_cluster_id is None\n",
            "",
            f"{TROUBLED}::test_a_silence_of_a_query_does_not_hold_back_alerts_of_a_pipeline",
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            "        if each.query_id in (None, query) and each.flink_cluster_id",
            "        if each.flink_cluster_id",
            f"{TROUBLED}::test_a_silence_of_another_subject_does_not_hold_back_the_message",
        ),
    ),
    "an alert names the open incident that explains it, and shows the current value": (
        Mutant(
            "ftdash/alerts/evaluation.py",
            "mine = [row for row in incidents if row.pipeline_id == alert.pipeline_id]",
            "mine = incidents",
            (
                "tests/web/test_alerts_and_incidents.py::test_an_alert_belongs_to_no_incident_of_an"
                "other_pipeline"
            ),
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            "    return Cause(row.cause) in OF_FAILURES, row.last_at.timestamp()",
            "    return True, -row.last_at.timestamp()",
            (
                "tests/web/test_alerts_and_incidents.py::"
                "test_a_failure_explains_more_than_a_clock_and_the_newest_failure_wins"
            ),
        ),
        Mutant(
            "ftdash/alerts/evaluation.py",
            "            alert.newest_value, alert.newest_at = value, now\n",
            "            alert.newest_at = now\n",
            (
                "tests/web/test_alerts_and_incidents.py::"
                "test_a_firing_alert_shows_the_current_value_and_a_cleared_one_the_last"
            ),
        ),
    ),
    "no message of an alert reaches a private address": (
        Mutant(
            "ftdash/alerts/delivery.py",
            "plain = _unwrapped(address)",
            "plain = address",
            "tests/web/test_alert_delivery.py::test_no_message_goes_to_a_private_address",
        ),
    ),
    ("a game day passes only if its fault took effect and the output is proven since"): (
        Mutant(
            "ftdash/gameday/scoring.py",
            "    if not audit.is_as_recorded:\n",
            "    if False:\n",
            (
                "tests/web/test_game_day_scoring.py::"
                "test_a_run_that_does_not_recover_or_has_wrong_output_has_failed"
            ),
        ),
        Mutant(
            "ftdash/gameday/scoring.py",
            "    if seen.failed_at is None:\n        return _before_the_effect(seen)\n",
            "    if seen.failed_at is None:\n        return _before_the_proof(seen)\n",
            (
                "tests/web/test_game_day_scoring.py::test_a_game_day_goes_from_its_faul"
                "t_to_its_proof"
            ),
        ),
    ),
    "a form whose answer shows a secret counts once": (
        Mutant(
            "ftdash/accounts/services.py",
            "        _use(value)\n",
            "",
            (
                "tests/web/test_settings_page.py::"
                "test_reloading_a_page_with_a_secret_changes_nothing_and_says_so"
            ),
        ),
    ),
    "a server judges the code that would run now, not what it once imported": (
        Mutant(
            "ftdash/jobs/fresh_code.py",
            "    if _staying:\n",
            "    if False:\n",
            (
                "tests/web/test_fresh_code.py::"
                "test_the_preflight_of_a_running_server_sees_a_renamed_operator"
            ),
        ),
        Mutant(
            "ftdash/asgi.py",
            "    stay()\n",
            "",
            (
                "tests/web/test_asgi.py::test_pages_are_preloaded_and_excluded_from_garbage_collection"
            ),
        ),
        Mutant(
            "pipelines/points/code_process.py",
            "        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())\n",
            "",
            (
                "tests/web/test_fresh_code.py::"
                "test_broken_code_is_refused_with_its_traceback_and_code_may_print"
            ),
        ),
    ),
    "a slow or long-lived client blocks no other": (
        Mutant(
            "ftdash/asgi.py",
            "                place.close()",
            "                pass",
            (
                "tests/web/test_page_handler.py::"
                "test_open_streams_leave_their_threads_to_other_requests"
            ),
        ),
    ),
    "a server that is silent, or stopped, holds no page back": (
        Mutant(
            "pipelines/domain/clock.py",
            "return usual_s if at_most_s is None else min(usual_s, at_most_s)",
            "return usual_s",
            (
                "tests/unit/connectors/test_silent_servers.py::"
                "test_a_silent_server_is_named_soon_when_a_person_waits"
            ),
        ),
        Mutant(
            "ftdash/postgresql/base.py",
            "psycopg.connect(**conn_params).close()",
            'raise psycopg.errors.ConnectionTimeout("at once")',
            (
                "tests/contracts/test_postgres.py::"
                "test_a_stopped_control_database_is_given_up_but_not_a_slow_one"
            ),
        ),
        Mutant(
            "ftdash/django_hooks.py",
            (
                "        with waiting_at_most(settings.SERVERS_ANSWER_WITHIN_S):\n"
                "            response: HttpResponseBase = get_response(request)\n"
                "            return response"
            ),
            "        return get_response(request)",
            (
                "tests/web/test_ui_actions.py::"
                "test_the_verdict_does_not_wait_for_a_silent_server_and_names_it"
            ),
        ),
    ),
    ("a cached region is given only to people of the same role, and only while it is current"): (
        Mutant(
            "ftdash/ui/events.py",
            "return counts, may_act, regions, request.get_full_path()",
            "return counts, regions, request.get_full_path()",
            (
                "tests/web/test_shared_regions.py::test_the_buttons_of_an_admin_are_not"
                "_given_to_an_operator"
            ),
        ),
        Mutant(
            "ftdash/ui/events.py",
            "return counts, may_act, regions, request.get_full_path()",
            "return may_act, regions, request.get_full_path()",
            "tests/web/test_shared_regions.py::test_changed_regions_are_rendered_again",
        ),
    ),
    "at least one admin always remains": (
        Mutant(
            "ftdash/accounts/services.py",
            "        _check_another_admin(user)\n        User.objects",
            "        User.objects",
            "tests/web/test_people.py::test_the_last_admin_cannot_be_demoted_deactivated_or_reset",
        ),
    ),
    (
        "nothing is answered without a token or a session, and an old job's id "
        "never acts on a newer run"
    ): (
        Mutant(
            "ftdash/accounts/authentication.py",
            "        raise Refused(401, _WHO)\n",
            "        pass\n",
            "tests/web/test_flink_access.py::test_nothing_is_answered_without_a_token_or_session",
        ),
        Mutant(
            "ftdash/accounts/authentication.py",
            "        raise Refused(401, _WHO)\n",
            "        pass\n",
            "tests/web/test_own_api.py::test_the_description_names_every_address_and_its_answer",
        ),
        Mutant(
            "ftdash/requests/services.py",
            "        if only_run not in (None, run.run_id):\n",
            "        if False:\n",
            (
                "tests/web/test_flink_actions.py::test_an_old_job_never_acts_on_the_run"
                "_that_followed_it"
            ),
        ),
    ),
    (
        "a stored request is the command that its driver gets, and a new command touches three"
        " places"
    ): (
        Mutant(
            "ftdash/jobs/models.py",
            "{**self.command_json, **dict(zip(ADDRESS, address, strict=True))}",
            "self.command_json",
            "tests/web/test_stored_commands.py::test_a_row_holds_the_command_that_the_driver_gets",
        ),
        Mutant(
            "pipelines/bus/inbox.py",
            "            _check_addressed(command, path)\n",
            "",
            "tests/unit/bus/test_inbox.py::test_an_unreadable_command_does_not_stop_the_others",
        ),
        Mutant(
            "ftdash/requests/storing.py",
            "import COMMANDS, Command,",
            "import COMMANDS, Cancel, Command,",
            (
                "tests/test_architecture.py::test_a_new_command_touches_its_type_its_handler"
                "_and_its_form"
            ),
        ),
    ),
    ("the rights of a token are decided for every address, and no token opens another way in"): (
        Mutant(
            "ftdash/api/own/door.py",
            (
                "    if request.method not in SAFE:\n"
                "        check_may_act(caller, request)\n"
                "    return caller"
            ),
            "    return caller",
            (
                "tests/web/test_own_api_rights.py::"
                "test_each_caller_may_read_and_change_only_what_its_rights_allow[operator]"
            ),
        ),
        Mutant(
            "ftdash/accounts/authentication.py",
            "may_act = may_configure or token.scope == TokenScope.ACT",
            "may_act = True",
            (
                "tests/web/test_own_api_rights.py::"
                "test_each_caller_may_read_and_change_only_what_its_rights_allow[token to read]"
            ),
        ),
    ),
    ("under `ftdash dev`, an edit keeps the state; code that does not load or fails loses none"): (
        Mutant(
            "ftdash/command_line/development.py",
            "    return before\n",
            "    return None\n",
            "tests/processes/test_development.py::"
            "test_an_edit_starts_the_new_code_from_a_savepoint_and_broken_code_loses_no_state",
        ),
        Mutant(
            "ftdash/command_line/development.py",
            "        return view.checkpoint.path\n",
            "        return before\n",
            "tests/web/test_development.py::test_the_next_process_starts_from_the_newest_point",
        ),
    ),
    ("a report of a listener counts once, in any order of arrival"): (
        Mutant(
            "ftdash/watching/query_status.py",
            "    return max(one, other)\n",
            "    return other\n",
            "tests/web/test_watched_reports.py::"
            "test_a_standing_does_not_depend_on_the_order_of_its_events",
        ),
        Mutant(
            "ftdash/watching/services/reports.py",
            "    seen.dropped = max(seen.dropped, dropped)\n",
            "    seen.dropped = dropped\n",
            "tests/web/test_watched_reports.py::"
            "test_dropped_events_are_counted_per_listener_and_never_go_down",
        ),
    ),
    ("one request at a time goes to a watched Flink cluster"): (
        Mutant(
            "ftdash/flink_clusters/services/looking.py",
            "    if not taken.update(turn_holder=holder, turn_until=until):\n",
            "    if taken.update(turn_holder=holder, turn_until=until) > 1:\n",
            f"{FLINK}::test_one_process_at_a_time_talks_to_a_cluster",
        ),
        Mutant(
            "ftdash/flink_clusters/rest.py",
            "        self._before_each()\n",
            "        pass\n",
            f"{FLINK}::test_one_process_at_a_time_talks_to_a_cluster",
        ),
    ),
    ("the history of a Flink cluster outlives its jobs and the cluster"): (
        Mutant(
            "ftdash/flink_clusters/services/keeping.py",
            '                job.save(update_fields=["forgotten_at"])\n',
            "                job.delete()\n",
            f"{FLINK}::test_a_job_missing_from_the_cluster_is_marked_as_forgotten_and_kept",
        ),
        Mutant(
            "ftdash/flink_clusters/services/keeping.py",
            "        rows.update(said_at=now)\n",
            "        job.checkpoints.exclude(checkpoint_id__in=ids).delete()\n",
            f"{FLINK}::test_more_checkpoints_are_kept_than_the_ten_that_flink_keeps",
        ),
        Mutant(
            "ftdash/flink_clusters/services/looking.py",
            "            is_known = is_settled(listed, _read_all_about(job, flink))\n",
            "            is_known = _read_all_about(job, flink) is not None\n",
            f"{FLINK}::test_a_look_asks_again_about_a_change_until_flinks_copies_are_current",
        ),
    ),
    (
        "a trigger for a Flink job is sent once, or its row says that it was sent again, and it"
        " ends once"
    ): (
        Mutant(
            "ftdash/flink_clusters/services/actions.py",
            "            _send(row, flink, now, note=SENT_AGAIN)\n",
            "            _send(row, flink, now)\n",
            f"{FLINK_WORK}::test_an_action_that_a_dead_worker_did_not_send_is_sent_with_a_note",
        ),
        Mutant(
            "ftdash/flink_clusters/services/actions.py",
            "    if row.state == FlinkActionState.WAITING:\n        if next_of_unsent(created_at=",
            "    if row.state != FlinkActionState.ACCEPTED:\n        if next_of_unsent(created_at=",
            f"{FLINK_WORK}::test_an_action_that_flink_accepted_is_not_sent_again_after_a_worker_died",
        ),
        Mutant(
            "ftdash/flink_clusters/services/actions.py",
            "    return FlinkAction.objects.filter(pk=row.pk, ended_at=None)\n",
            "    return FlinkAction.objects.filter(pk=row.pk)\n",
            f"{FLINK_WORK}::test_each_kind_has_one_open_action_and_an_action_ends_once",
        ),
    ),
    ("the header of a Flink cluster is sent only to its address and shown nowhere"): (
        Mutant(
            "ftdash/flink_clusters/queries/__init__.py",
            "        address=row.address,\n",
            '        address=f"{row.address} {row.header_value}",\n',
            f"{FLINK}::test_a_header_authorizes_requests_and_is_shown_nowhere",
        ),
        Mutant(
            "ftdash/flink_clusters/rest.py",
            "            follow_redirects=False,\n",
            "            follow_redirects=True,\n",
            f"{FLINK}::test_a_redirect_does_not_get_the_header",
        ),
    ),
    ("a token to listen opens nothing else, and no other token reports"): (
        Mutant(
            "ftdash/accounts/authentication.py",
            "        if token.scope == TokenScope.LISTEN:\n",
            "        if token.scope == TokenScope.LISTEN and request.method == 'POST':\n",
            "tests/web/test_watched_reports.py::test_a_listen_token_reports_and_opens_nothing_else",
        ),
        Mutant(
            "ftdash/accounts/authentication.py",
            "    if token.scope != TokenScope.LISTEN:\n",
            "    if not token.scope:\n",
            "tests/web/test_watched_reports.py::test_other_tokens_may_not_report",
        ),
    ),
    ("a listener never waits for its dashboard, and counts what it drops"): (
        Mutant(
            "pipelines/spark/listener/ftdash_listener/sending.py",
            "        self._dropped[gone.query_id] = self._dropped.get(gone.query_id, 0) + 1\n",
            "        self._dropped[gone.query_id] = 1\n",
            "tests/unit/spark/test_listener_sending.py::"
            "test_a_restarted_dashboard_gets_the_newest_events_and_the_dropped_count",
        ),
        Mutant(
            "pipelines/spark/listener/ftdash_listener/sending.py",
            "        status, said = self._post(events, dropped)\n",
            "        with self._lock:\n            status, said = self._post(events, dropped)\n",
            "tests/unit/spark/test_listener_sending.py::"
            "test_events_that_a_failing_dashboard_missed_arrive_once_it_recovers[None]",
        ),
        Mutant(
            "pipelines/spark/listener/ftdash_listener/listener.py",
            '"errorClass": getattr(event, "errorClassOnException", None),',
            '"errorClass": None,',
            "tests/integration/test_listener.py::"
            "test_the_exception_of_a_query_that_fails_is_reported_with_its_class",
        ),
    ),
    (
        "a rewind or a savepoint of a watched query is written only below the roots, "
        "outside every watched directory"
    ): (
        Mutant(
            "ftdash/watching/services/forks.py",
            "    check_place(place, settings.WATCH_ROOTS)\n",
            "    pass\n",
            f"{SAVED}::test_a_fork_outside_the_allowed_places_is_refused[outside the roots]",
        ),
        Mutant(
            "ftdash/watching/services/forks.py",
            "            if are_nested(_place(place), _place(other)):\n",
            "            if _place(place) == _place(other):\n",
            f"{SAVED}::test_a_fork_outside_the_allowed_places_is_refused[within the query]",
        ),
        Mutant(
            "pipelines/structured/savepoints.py",
            "    check_is_apart(target, source)\n",
            "",
            "tests/unit/structured/test_fork.py::"
            "test_a_fork_writes_nothing_into_or_around_the_original",
        ),
    ),
    ("only an admin or a token to act starts work on a query's files"): (
        Mutant(
            "ftdash/ui/watching/works.py",
            '@permission_required("jobs.operate", raise_exception=True)\ndef fork(',
            "def fork(",
            "tests/web/test_watched_works.py::test_an_operator_sees_the_pages_but_starts_nothing",
        ),
        Mutant(
            "ftdash/api/own/door.py",
            "        check_may_act(caller, request)\n",
            "        pass\n",
            "tests/web/test_own_api_rights.py::"
            "test_each_caller_may_read_and_change_only_what_its_rights_allow",
        ),
    ),
    (
        "the channels get each incident of a watched stream once when it opens and once "
        "when it ends"
    ): (
        Mutant(
            "ftdash/alerts/evaluation.py",
            "        if not watched_incidents.note_told(incident, is_over=is_over):\n"
            "            continue\n",
            "",
            f"{TROUBLED}::test_channels_get_one_message_when_an_incident_opens_and_one_when_it_ends",
        ),
        Mutant(
            "ftdash/watching/incident_signs.py",
            "    if seen.state in (QueryState.IDLE, QueryState.FINISHED, QueryState.FAILED):\n"
            "        return None\n",
            "",
            f"{TROUBLED}::test_each_problem_of_a_query_is_reported_under_its_cause",
        ),
    ),
    (
        "incidents of a Flink job stay as they were while its cluster does not answer, and a job"
        " that has ended or has a successor owes no checkpoint"
    ): (
        Mutant(
            "ftdash/flink_clusters/queries/incident_facts.py",
            ', cluster__problem="", cluster__heard_at__gte=now - SILENT_AFTER',
            "",
            f"{FLINK_TROUBLED}::test_a_dead_cluster_sends_one_message_and_keeps_its_jobs_incidents",
        ),
        Mutant(
            "ftdash/flink_clusters/incident_signs.py",
            "        return\n    if seen.exception_count",
            "    if seen.exception_count",
            f"{FLINK_TROUBLED}::test_each_problem_of_a_job_is_reported_under_its_cause",
        ),
    ),
    ("work on a query's files ends once, and leaves no half copy"): (
        Mutant(
            "ftdash/watching/services/work.py",
            "    ended = QueryWork.objects.filter(pk=key, ended_at=None).update(\n",
            "    ended = QueryWork.objects.filter(pk=key).update(\n",
            f"{SAVED}::test_the_work_of_a_dead_process_ends_once_and_its_files_are_removed",
        ),
        Mutant(
            "ftdash/watching/services/work.py",
            "        tree.delete_all()\n",
            "        pass\n",
            f"{SAVED}::test_the_work_of_a_dead_process_ends_once_and_its_files_are_removed",
        ),
        Mutant(
            "ftdash/watching/services/work.py",
            'any(tree.read("metadata") is not None for tree in trees)',
            "not trees",
            f"{SAVED}::test_a_complete_fork_stays_even_if_its_process_died",
        ),
    ),
    ("watching writes nothing into the files of a query"): (
        Mutant(
            "ftdash/watching/reading.py",
            "    query = read_query(directory, roots, output=output)\n",
            "    query = read_query(directory, roots, output=output)\n"
            '    Path(directory, "looked").touch()\n',
            "tests/web/test_watched_pages.py::"
            "test_a_directory_alone_gives_batches_points_and_findings",
        ),
    ),
    (
        "a page and a refresh of a pipeline at parallelism 64 stay below 300 kB and 30 kB; no"
        " subtask is left out: a page of the table and the file have each"
    ): (
        Mutant(
            "ftdash/ui/checkpoint/part_rows.py",
            "    first = SUBTASKS_SHOWN * (min(page, pages) - 1)\n",
            "    first = 0\n",
            "tests/web/test_wide_pages.py::"
            "test_the_slowest_subtasks_come_first_and_all_are_paged_and_in_the_file",
        ),
    ),
    (
        "the page of all pipelines and `/metrics` read as many queries for many pipelines,"
        " incidents and alerts as for few"
    ): (
        Mutant(
            "ftdash/runs/queries/pulses.py",
            "    recoveries = recoveries_ms_of([run.pipeline_id for run in runs])\n",
            "    recoveries = {}\n    for run in runs:\n"
            "        recoveries |= recoveries_ms_of([run.pipeline_id])\n",
            "tests/web/test_large_fleet.py::test_more_pipelines_need_no_more_queries",
        ),
        Mutant(
            "ftdash/incidents/queries.py",
            "{pipeline.pk: run for pipeline, run in newest_runs(waiting)} if waiting else {}",
            "{key: run for key in waiting for _, run in newest_runs([key])}",
            "tests/web/test_large_fleet.py::"
            "test_more_pipelines_incidents_and_alerts_need_no_more_queries_for_an_answer",
        ),
    ),
    ("the palette finds actions only for people who may act"): (
        Mutant(
            "ftdash/ui/palette/page.py",
            "for name in names if may_act else ():",
            "for name in names:",
            "tests/web/test_palette.py::test_only_people_who_may_act_find_actions",
        ),
    ),
}
