"""A slot: the process that hosts at most one subtask of each vertex for one attempt.

It dials the job master, proves the attempt's token, and gets its deployment. When its control
connection ends, it exits within milliseconds (`os._exit`), so that no zombie of an old attempt
writes anything while the next one starts. One thread always listens to the master. Another carries
out the master's orders, which may take long: a deployment downloads and loads all state. Knows
nothing of Spark.
"""

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import threading
from pathlib import Path

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from pipelines.channels.channel import NetworkLimits, PeerAddress
from pipelines.channels.guarded_port import RefusedConnection
from pipelines.channels.handshake import HANDSHAKE_TIMEOUT_MS, Tls, prove_token
from pipelines.channels.slot_network import SlotNetwork
from pipelines.domain.clock import Clock
from pipelines.domain.errors import InvariantViolated, ProtocolError, check
from pipelines.domain.faults import FaultPoint
from pipelines.domain.log_lines import LogLine
from pipelines.domain.status import KillMoment
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import (
    MASTER_DECODER,
    Aborted,
    Beat,
    Begin,
    Completed,
    ControlLink,
    Deploy,
    Deployed,
    Die,
    Failed,
    FromMaster,
    Hello,
    Inject,
    Logged,
    Message,
    PeerLost,
    Pulse,
    Restoring,
    Running,
    SlowUploads,
    StrangerTurnedAway,
    prepare,
)
from pipelines.runtime.faults import Faults
from pipelines.runtime.logged_lines import SlotLog
from pipelines.runtime.networking import SlotAddress, load_tls, slot_hosts
from pipelines.runtime.slot.deployment import Deployment, built_pipeline, deploy
from pipelines.runtime.slot.subtask_reports import Sampler, SubtaskReports, deliver
from pipelines.runtime.slot.vigil import Vigil, Watch
from pipelines.runtime.subtask.snapshots.restoring import RestoreMeter
from pipelines.runtime.subtask.snapshots.upload_threads import UploadThreads

CONNECT_TIMEOUT_S = 30.0
CONNECT_TRY_S = 2.0
"""Short, so that a slot soon retries after a network failure; the kernel alone would wait longer
each time."""
EXIT_CONTROL_LOST = 71
EXIT_STALE = 72
FAREWELL_TIMEOUT_MS = 2_000
"""The limit for connecting, and again for being refused. Nothing depends on the farewell, so a
replaced process must not stay alive long for it."""

log = logging.getLogger(__name__)


def run_slot(address: SlotAddress, slot: int, packages: Path | None = None) -> None:
    """Returns after the final checkpoint. In any other case the process exits.

    `packages`: the directory where the host puts the packages that it sends, or None if it sends
    none.
    """
    pa.set_cpu_count(1)  # parallelism comes from slots; more threads would only compete for cores
    _keep_freed_memory()
    tls = load_tls(address.networking)
    dialled = _dialled(address)
    hosts = slot_hosts(address.networking, dialled.getsockname()[0])
    prepare(dialled, address.heartbeat)
    connection = dialled if tls is None else tls.connect(dialled, HANDSHAKE_TIMEOUT_MS)
    prove_token(connection, address.token, attempt=address.attempt, slot=slot)
    connection.settimeout(None)
    clock = SystemClock()
    link = ControlLink(connection, MASTER_DECODER, clock.monotonic_ms)
    SlotHost(address, slot, link, hosts, tls=tls, clock=clock, packages=packages).serve()


def _keep_freed_memory() -> None:
    """Switches Arrow to jemalloc. Batches that wait (read ahead, in a log, for a barrier) are freed
    long after they were made. With mimalloc, Arrow's default, the kernel then has to clear fresh
    pages for the next ones."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def _dialled(address: SlotAddress) -> socket.socket:
    """Raises OSError. It retries only timeouts: a driver that refuses the connection is gone."""
    silent = retry_if_exception_type(TimeoutError)
    attempts = Retrying(retry=silent, stop=stop_after_delay(CONNECT_TIMEOUT_S), reraise=True)
    where = (address.host, address.port)
    return attempts(socket.create_connection, where, CONNECT_TRY_S)


class SlotHost:
    """Carries out the master's orders, and reports the progress of its subtasks.

    Guarantee: at all times it listens to the master, reports that it is alive, and exits when the
    control connection ends.
    """

    def __init__(
        self,
        address: SlotAddress,
        slot: int,
        link: ControlLink[FromMaster],
        hosts: tuple[str, str],  # how peers reach the data port, and where it listens
        *,
        tls: Tls | None,
        clock: Clock,
        packages: Path | None,
    ) -> None:
        self._address = address
        self._packages = packages
        self._attempt = address.attempt
        self._slot = slot
        self._link = link
        self._clock = clock
        self._vigil = Vigil(self._clock, address.heartbeat)
        self._watch = Watch(self._vigil, address.heartbeat, self._end_stale)
        self._pulse = Pulse(address.heartbeat, self._beat)
        self._network = SlotNetwork(
            slot,
            address.attempt,
            address.token,
            on_failure=self._network_failed,
            on_refused=self._turned_away,
            host=hosts[0],
            bind_host=hosts[1],
            tls=tls,
            limits=NetworkLimits(unanswered_ms=address.heartbeat.timeout_ms),
        )
        self._uploads = UploadThreads(clock)
        self._deployment: Deployment | None = None
        self._peers: list[PeerAddress] = []
        self._reports = SubtaskReports(self._try_send, self.reach)
        self._faults = Faults()
        self._meter = RestoreMeter()
        self._logged = SlotLog(slot, address.attempt, self._tell_logged)
        self._orders: queue.SimpleQueue[FromMaster | None] = queue.SimpleQueue()

    def serve(self) -> None:
        host, port = self._network.address
        self._link.send(Hello(slot=self._slot, pid=os.getpid(), host=host, data_port=port))
        self._logged.begin()
        self._watch.start()
        self._pulse.start()
        threading.Thread(target=self._hear, name="hearing", daemon=True).start()
        while (order := self._orders.get()) is not None:
            try:
                self._obey(order)
            except Exception as error:
                self._reports.slot_failed(error)
        self._logged.end()
        self._watch.close()
        self._pulse.close()
        self._network.close()
        self._uploads.shutdown()
        self._deployed().close()

    # On the listening thread.

    def _hear(self) -> None:
        """Handles messages until the control connection ends. Then the process exits, unless its
        work is done."""
        try:
            while (message := self._link.receive()) is not None:
                self._vigil.on_heard()
                self._on_message(message)
        except Exception:  # treat a master that sends undecodable messages as gone
            log.exception("Slot %d of attempt %d hears no more.", self._slot, self._attempt)
        if not self._reports.have_all_ended:
            self._check_vigil()
            os._exit(EXIT_CONTROL_LOST)
        self._orders.put(None)

    def _on_message(self, message: FromMaster) -> None:
        match message:
            case Deploy() | Begin() | Inject() | Completed() | Aborted():
                self._orders.put(message)
            case Beat():
                pass  # it only shows that the master is alive
            case Die(moment=KillMoment.NOW):
                os.kill(os.getpid(), signal.SIGKILL)
            case Die(moment=moment, within_s=within_s):
                self._faults.kill_at(FaultPoint(moment.value), within_s)
            case SlowUploads(delay_ms=delay_ms, for_ms=for_ms):
                self._faults.slow_at(FaultPoint.UPLOADING, delay_ms / 1000, for_ms / 1000)

    # On the thread that carries out orders.

    def _obey(self, order: FromMaster) -> None:
        match order:
            case Deploy():
                self._deploy(order)
            case Begin():
                self._begin()
            case Inject() | Completed() | Aborted():
                deliver(order, self._deployed())

    def _deploy(self, message: Deploy) -> None:
        check(self._deployment is None, "a slot is deployed once")
        self._peers = [PeerAddress(p.slot, p.host, p.port) for p in message.peers]
        self._faults.follow(message.faults, self._slot)
        self.reach(FaultPoint.RESTORING)
        self._deployment = deploy(
            message,
            built_pipeline(message, self._packages),
            attempt=self._attempt,
            subtask=self._slot,
            network=self._network,
            uploads=self._uploads,
            uploads_starve=self._uploads.starve,
            reporter=self._reports,
            clock=self._clock,
            meter=self._meter,
        )
        self._reports.on_deployed(
            len(self._deployment.subtasks), shows_records=message.shows_failed_records
        )
        self.reach(FaultPoint.RESTORED)
        self._tell_progress()
        self._link.send(Deployed())

    def _begin(self) -> None:
        deployment = self._deployed()
        self._network.connect(self._peers)
        gc.freeze()  # existing objects stay for good, so garbage collections need not scan them
        for acker in deployment.ackers:
            acker.begin(self._reports.slot_failed)
        for subtask in deployment.subtasks:
            subtask.start()
        self._link.send(Running())
        Sampler(deployment, self._clock, self._try_send).start()

    def _deployed(self) -> Deployment:
        if self._deployment is None:
            raise InvariantViolated("a slot is deployed before any other message")
        return self._deployment

    def reach(self, point: FaultPoint) -> None:
        """Also checks here, before the slot acts, whether it may have been replaced."""
        self._faults.reach(point, self._attempt)
        self._check_vigil()

    def _beat(self) -> None:
        self._try_send(Beat())
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self._meter.has_news():
            self._try_send(Restoring(progress=self._meter.progress()))

    def _network_failed(self, problem: str) -> None:
        if not self._reports.have_all_ended:
            self._try_send(PeerLost(problem=problem))

    def _turned_away(self, refused: RefusedConnection) -> None:
        what = f"a data connection from {refused.address}: {refused.refusal}"
        self._try_send(StrangerTurnedAway(attempt=refused.attempt, what=what))

    def _check_vigil(self) -> None:
        objection = self._vigil.objection()
        if objection is not None:
            self._end_stale(objection)

    def _end_stale(self, why: str) -> None:
        """Exits: another process does this slot's work now. It first dials the driver once more,
        which refuses it and records that."""
        log.error("Slot %d of attempt %d ends: %s.", self._slot, self._attempt, why)
        self._reports.slot_failed(ProtocolError(f"Slot {self._slot} ends: {why}."))
        with contextlib.suppress(OSError, ProtocolError):  # the driver may be gone
            self._farewell()
        os._exit(EXIT_STALE)

    def _farewell(self) -> None:
        where = (self._address.host, self._address.port)
        with socket.create_connection(where, FAREWELL_TIMEOUT_MS / 1000) as connection:
            prove_token(
                connection,
                self._address.token,
                attempt=self._attempt,
                slot=self._slot,
                timeout_ms=FAREWELL_TIMEOUT_MS,
            )

    def _tell_logged(self, lines: list[LogLine], dropped: int) -> None:
        self._try_send(Logged(lines=lines, dropped=dropped))

    def _try_send(self, message: Message) -> None:
        """Ignores a lost connection: the listening thread notices it and ends the process."""
        if isinstance(message, Failed):
            self._logged.send_held()  # these lines say why; the master's answer ends this process
        with contextlib.suppress(OSError):
            self._link.send(message)
