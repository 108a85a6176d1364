"""Runs `demo --check`: the demonstration without a person, bounded, with its answer proved.

Decides the order of the steps on the pipeline. It sees and does only what a person could: rows
through the queries, actions through the dashboard, and SIGKILL from outside, only to a process that
the rows name. It uses the web server as a browser does, with a session and a CSRF token; it knows
the addresses and the fields of the forms, and nothing behind them.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urldefrag

import httpx
import psutil
from django.urls import reverse
from django.utils.html import strip_tags

from ftdash.embedded.checked import CheckedPipeline, Observer
from ftdash.embedded.demo import Account, open_installation, provide_accounts
from ftdash.embedded.installation import free_port
from ftdash.embedded.outcome import CheckOutcome, Console
from ftdash.embedded.stack import web_address
from ftdash.embedded.supervisor import last_words
from ftdash.jobs.answers import RunView, ShownState
from pipelines.domain.errors import Rejected
from pipelines.domain.status import KillMoment

TIMEOUT_S = 20.0
ANSWER_LENGTH_MAX = 500
REQUEST_MARK = "request-"


class DashboardClient:
    """One browser session at one server."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=TIMEOUT_S)

    def __enter__(self) -> "DashboardClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def sign_in(self, account: Account) -> None:
        login = reverse("login")
        with answering(login):
            self._client.get(login).raise_for_status()
        self._post(login, {"username": account.name, "password": account.password or ""})
        if "sessionid" not in self._client.cookies:
            raise Rejected(f"The dashboard did not let {account.name} sign in.")

    def read(self, path: str) -> str:
        """Returns a page. Raises Rejected if the server does not answer, or answers an error."""
        with answering(path):
            return str(self._client.get(path, follow_redirects=True).raise_for_status().text)

    def act(self, pipeline: str, action: str, reason: str, **fields: str) -> str:
        """Ask for an action on the pipeline's page; returns the id of the stored request."""
        form = {"reason": reason, "confirmation": pipeline, **fields}
        answer = self._post(reverse("act", args=[pipeline, action]), form)
        mark = urldefrag(str(answer.headers.get("location", ""))).fragment
        if not mark.startswith(REQUEST_MARK):
            raise Rejected(f"The dashboard refused to {action} {pipeline}: {text_of(answer)}")
        return mark.removeprefix(REQUEST_MARK)

    def kill_slot(self, pipeline: str, slot: int, moment: KillMoment, reason: str) -> str:
        return self.act(pipeline, "kill", reason, slot=str(slot), moment=moment.value)

    def restore(self, pipeline: str, path: str, parallelism: int, reason: str) -> str:
        return self.act(pipeline, "restore", reason, path=path, parallelism=str(parallelism))

    def _post(self, path: str, form: Mapping[str, str]) -> httpx.Response:
        token = self._client.cookies.get("csrftoken") or ""
        with answering(path):
            return self._client.post(path, data=dict(form), headers={"X-CSRFToken": token})


@contextmanager
def answering(path: str) -> Iterator[None]:
    """Wraps a request: raises its errors as Rejected, in one sentence."""
    try:
        yield
    except httpx.HTTPError as failure:
        raise Rejected(f"The dashboard did not answer to {path}: {failure!r}.") from failure


def text_of(answer: httpx.Response) -> str:
    """Returns the text that a person would read, shortened."""
    words = " ".join(strip_tags(answer.text).split())
    return f"status {answer.status_code}: {words[:ANSWER_LENGTH_MAX]}"


DRIVER_MODULE = "pipelines.spark.driver"


def kill_slot_process(run: RunView, slot: int) -> int:
    """Kill one slot's Python process; returns its process id. Raises Rejected if it is gone."""
    pids = [each.pid for each in run.slots if each.slot == slot]
    if not pids:
        raise Rejected(f"Slot {slot} of run {run.run_id} is not connected.")
    kill(pids[0], f"slot {slot}", "pyspark")
    return pids[0]


def kill_driver(run: RunView) -> int:
    """Kill the driver of a run; returns its process id. Raises Rejected if it is gone."""
    if run.driver_pid is None:
        raise Rejected(f"The driver of run {run.run_id} is not known.")
    kill(run.driver_pid, "the driver", DRIVER_MODULE)
    return run.driver_pid


def kill(pid: int, what: str, command_part: str) -> None:
    """Kills only the expected process: another one may have its id by now."""
    try:
        process = psutil.Process(pid)
        if not any(command_part in part for part in process.cmdline()):
            raise Rejected(f"Process {pid} is not {what}; it is {process.name()}.")
        process.kill()
    except psutil.NoSuchProcess:
        raise Rejected(f"Process {pid}, {what}, is gone already.") from None


RESTORED_PARALLELISM = 3
REASON = "check of the whole installation"
START_WITHIN_S = 90.0
RECOVERY_WITHIN_S = 90.0
REQUEST_WITHIN_S = 60.0


def run_check(console: Console, checked: CheckedPipeline) -> CheckOutcome:
    """Runs all steps in order. A failure becomes the verdict, and the driver's log is shown."""
    outcome = checked.outcome()
    began = time.monotonic()
    port = free_port()
    try:
        with open_installation(console, port, checked.services) as supervisor:
            [admin, _] = provide_accounts(new_passwords=True)
            with DashboardClient(web_address(port)) as dashboard:
                dashboard.sign_in(admin)
                observer = Observer(checked.name, supervisor.revive)
                scenario = Scenario(console, observer, dashboard, checked)
                outcome = scenario.play(outcome)
    except Rejected as failure:
        outcome = replace(outcome, verdict=first_line(failure))
        console.line(str(failure))
    return replace(outcome, seconds=round(time.monotonic() - began, 1))


def first_line(failure: Rejected) -> str:
    return str(failure).partition("\n")[0]


class Scenario:
    """The steps of the check on the pipeline, and their tally."""

    def __init__(
        self,
        console: Console,
        observer: Observer,
        dashboard: DashboardClient,
        checked: CheckedPipeline,
    ) -> None:
        self._console = console
        self._observer = observer
        self._dashboard = dashboard
        self._checked = checked
        self._name = checked.name
        self._outcome = CheckOutcome()
        self._first_run = ""

    def play(self, outcome: CheckOutcome) -> CheckOutcome:
        """Even if a step fails, the outcome contains what was reached until then."""
        self._outcome = outcome
        try:
            self._play()
        except Rejected as failure:
            self._console.line(str(failure))
            self._show_driver_log()
            return replace(self._tallied(), verdict=first_line(failure))
        return self._tallied()

    def _play(self) -> None:
        self._start()
        self._kill_slot_while_aligning()
        self._kill_slot_now()
        self._kill_driver()
        savepoint = self._take_savepoint()
        last = self._stop()
        self._restore(savepoint if self._checked.restores_older else last)
        self._finish()
        self._compare()

    def _start(self) -> None:
        self._step(f"Preparing what {self._name} reads ...")
        self._checked.start()
        self._step("Waiting for the pipeline to run and complete two checkpoints ...")
        run = self._observer.wait_running_with_checkpoints(2, within_s=START_WITHIN_S)
        self._first_run = run.run_id

    def _kill_slot_while_aligning(self) -> None:
        self._step("Killing slot 0 while it aligns a checkpoint, asked through the dashboard ...")
        before = self._observer.run()
        request = self._dashboard.kill_slot(self._name, 0, KillMoment.ALIGNING, REASON)
        self._observer.wait_granted(request, within_s=REQUEST_WITHIN_S)
        self._await_recovery(before)
        if not self._observer.has_failed_checkpoint(before):
            raise Rejected("Slot 0 was killed, but no checkpoint was under way in that moment.")
        self._outcome = replace(self._outcome, slots_killed=self._outcome.slots_killed + 1)

    def _kill_slot_now(self) -> None:
        before = self._observer.run()
        pid = kill_slot_process(before, before.parallelism - 1)
        self._step(f"Killed slot {before.parallelism - 1}, process {pid}, from outside ...")
        self._await_recovery(before)
        self._outcome = replace(self._outcome, slots_killed=self._outcome.slots_killed + 1)

    def _kill_driver(self) -> None:
        before = self._observer.run()
        pid = kill_driver(before)
        self._step(f"Killed the driver, process {pid} ...")
        self._await_recovery(before)
        self._outcome = replace(self._outcome, drivers_killed=self._outcome.drivers_killed + 1)

    def _take_savepoint(self) -> str:
        self._step("Taking a savepoint through the dashboard ...")
        return self._granted_savepoint("savepoint")

    def _stop(self) -> str:
        # First makes output beyond the savepoint visible, so that the restore has to set it aside:
        # the harder case.
        self._observer.wait_checkpoints_after(
            self._observer.run(), count=2, within_s=RECOVERY_WITHIN_S
        )
        self._step("Stopping with another savepoint ...")
        savepoint = self._granted_savepoint("stop")
        self._observer.wait_state(ShownState.FINISHED, within_s=REQUEST_WITHIN_S)
        return savepoint

    def _granted_savepoint(self, action: str) -> str:
        request = self._dashboard.act(self._name, action, REASON)
        path = self._observer.wait_granted(request, within_s=REQUEST_WITHIN_S).path
        if path is None or not Path(path).is_dir():
            raise Rejected(f"The {action} succeeded, but its savepoint {path} is no directory.")
        return path

    def _restore(self, savepoint: str) -> None:
        self._step(f"Restoring {Path(savepoint).name} at parallelism {RESTORED_PARALLELISM} ...")
        self._dashboard.restore(self._name, savepoint, RESTORED_PARALLELISM, REASON)
        run = self._observer.wait_new_run(self._first_run, within_s=REQUEST_WITHIN_S)
        run = self._observer.wait_running_with_checkpoints(1, within_s=START_WITHIN_S)
        if run.parallelism != RESTORED_PARALLELISM:
            raise Rejected(f"The restored run has parallelism {run.parallelism}.")
        self._outcome = replace(self._outcome, restores=self._outcome.restores + 1)

    def _finish(self) -> None:
        self._step("Waiting for the end of the input ...")
        self._checked.finish(self._observer)

    def _compare(self) -> None:
        self._step("Working the answer out otherwise, and reading what each sink holds ...")
        answer = self._checked.answer()
        for sink in answer.sinks.values():
            for difference in sink.sample_differences:
                self._console.line(difference)
        self._outcome = self._outcome.compared(answer.rows_expected, answer.sinks)
        self._step(f"Verdict: {self._outcome.verdict}")

    def _await_recovery(self, before: RunView) -> None:
        run = self._observer.wait_recovered(before, within_s=RECOVERY_WITHIN_S)
        self._step(f"Recovered: attempt {run.attempt}, checkpoint {run.last_checkpoint_id}.")

    def _tallied(self) -> CheckOutcome:
        return replace(
            self._outcome,
            checkpoints_completed=self._observer.checkpoints_completed(),
            recovery_ms=self._observer.recoveries_ms(),
        )

    def _show_driver_log(self) -> None:
        log = self._observer.driver_log()
        if log is not None:
            self._console.line(last_words(log))

    def _step(self, text: str) -> None:
        self._console.step(text)
