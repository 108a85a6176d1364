"""A slot: the process that hosts one subtask of every vertex for one attempt.

It dials the job master, proves the attempt's token, gets its deployment, and dies with its control
connection: `os._exit`, in milliseconds, so that no zombie of an old attempt writes anything while
the next one starts. Knows nothing of Spark.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from pipelines.channels.channel import PeerAddress
from pipelines.channels.handshake import HANDSHAKE_TIMEOUT_MS, prove_token
from pipelines.channels.limits import NetworkLimits
from pipelines.channels.server import RefusedConnection
from pipelines.channels.slot_network import SlotNetwork
from pipelines.channels.tls import Tls
from pipelines.domain.elements import Barrier
from pipelines.domain.errors import InvariantViolated, ProtocolError
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.network import SlotNetworking
from pipelines.domain.phases import SubtaskPhases
from pipelines.domain.settings import Heartbeat
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.domain.status import KillMoment, SavepointFormat
from pipelines.runtime.chain_place import ChainPlace
from pipelines.runtime.checkpoint_locations import CheckpointLocations, Upload
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import (
    MASTER_DECODER,
    Aborted,
    Acknowledged,
    Begin,
    Committed,
    Completed,
    Declined,
    Deploy,
    Deployed,
    Die,
    Ended,
    Failed,
    FromMaster,
    Hello,
    Inject,
    Message,
    PeerLost,
    Running,
    SourcesEnded,
    StrangerTurnedAway,
)
from pipelines.runtime.control import Heartbeat as Beat
from pipelines.runtime.control_link import ControlLink, prepare
from pipelines.runtime.deployment import Deployment, deploy
from pipelines.runtime.faults import NO_FAULTS, Faults
from pipelines.runtime.mailbox import CheckpointAborted, CheckpointCompleted, InjectBarrier
from pipelines.runtime.networking import load_tls, slot_hosts
from pipelines.runtime.operator_failure import OperatorFailed, described, is_fatal
from pipelines.runtime.sampling import Sampler
from pipelines.runtime.subtask_reporter import failure_reason
from pipelines.runtime.vigil import Pulse, Vigil, Watch

CONNECT_TIMEOUT_S = 30.0
CONNECT_TRY_S = 2.0
"""A network that was cut is tried again soon: the kernel alone would wait longer each time."""
UPLOAD_THREADS = 2
EXIT_CONTROL_LOST = 71
EXIT_STALE = 72
FAREWELL_TIMEOUT_S = 1.0
"""Nothing depends on it, and a process that has been replaced should not live on for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotAddress:
    """What a slot is told by its host. The token is the attempt's secret and is never logged."""

    host: str
    port: int
    token: str
    attempt: Attempt
    heartbeat: Heartbeat
    networking: SlotNetworking


def run_slot(address: SlotAddress, slot: int) -> None:
    """Serve until the final checkpoint; otherwise never return: the process exits."""
    pa.set_cpu_count(1)  # parallelism comes from slots; more threads would only fight over cores
    tls = load_tls(address.networking)
    dialled = _dialled(address)
    hosts = slot_hosts(address.networking, dialled.getsockname()[0])
    prepare(dialled, address.heartbeat)
    connection = dialled if tls is None else tls.connect(dialled, HANDSHAKE_TIMEOUT_MS)
    prove_token(connection, address.token, attempt=address.attempt, slot=slot)
    connection.settimeout(None)
    SlotHost(address, slot, ControlLink(connection, MASTER_DECODER), hosts, tls).serve()


def _dialled(address: SlotAddress) -> socket.socket:
    """Raises OSError: a driver that refuses is gone, one that does not answer is waited for."""
    silent = retry_if_exception_type(TimeoutError)
    attempts = Retrying(retry=silent, stop=stop_after_delay(CONNECT_TIMEOUT_S), reraise=True)
    where = (address.host, address.port)
    return attempts(socket.create_connection, where, CONNECT_TRY_S)


class SlotHost:
    """Carries out what the master says; reports what its subtasks do."""

    def __init__(
        self,
        address: SlotAddress,
        slot: int,
        link: ControlLink[FromMaster],
        hosts: tuple[str, str],  # that the data port is reached under, and that it listens on
        tls: Tls | None,
    ) -> None:
        self._address = address
        self._attempt = address.attempt
        self._slot = slot
        self._link = link
        self._clock = SystemClock()
        self._vigil = Vigil(self._clock, address.heartbeat)
        self._watch = Watch(self._vigil, address.heartbeat, self._end_stale)
        self._pulse = Pulse(address.heartbeat, lambda: self._try_send(Beat()))
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
        self._uploads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")
        self._deployment: Deployment | None = None
        self._peers: list[PeerAddress] = []
        self._locations = CheckpointLocations()
        self._running_subtasks = 0
        self._counting = threading.Lock()
        self._has_ended = False
        self._faults = NO_FAULTS

    def serve(self) -> None:
        host, port = self._network.address
        self._link.send(Hello(slot=self._slot, pid=os.getpid(), host=host, data_port=port))
        self._watch.start()
        self._pulse.start()
        while (message := self._link.receive()) is not None:
            self._vigil.on_heard()
            try:
                self._on_message(message)
            except Exception as error:
                self._report_failure(None, None, error)
        if not self._has_ended:
            self._check_vigil()
            os._exit(EXIT_CONTROL_LOST)
        self._watch.close()
        self._pulse.close()
        self._network.close()
        self._uploads.shutdown()
        self._deployed().close()

    def _on_message(self, message: FromMaster) -> None:
        match message:
            case Deploy():
                self._deploy(message)
            case Begin():
                self._begin()
            case Inject():
                self._inject(message)
            case Completed(checkpoint_id=checkpoint_id):
                self._locations.on_over(checkpoint_id)
                for subtask in self._deployed().subtasks:
                    subtask.mailbox.post(CheckpointCompleted(checkpoint_id))
            case Aborted(checkpoint_id=checkpoint_id):
                self._locations.on_over(checkpoint_id)
                for subtask in self._deployed().subtasks:
                    subtask.mailbox.post(CheckpointAborted(checkpoint_id))
            case Beat():
                pass  # that it was heard is all it says
            case Die(moment=KillMoment.NOW):
                os.kill(os.getpid(), signal.SIGKILL)
            case Die():
                for feed in self._deployed().gate_feeds:
                    feed.die_while_aligning()

    def _deploy(self, message: Deploy) -> None:
        self._peers = [PeerAddress(p.slot, p.host, p.port) for p in message.peers]
        self._faults = Faults(message.faults, self._slot)
        self.reach(FaultPoint.RESTORING)
        self._deployment = deploy(
            message,
            attempt=self._attempt,
            subtask=self._slot,
            network=self._network,
            uploads=self._uploads,
            reporter=self,
            clock=self._clock,
        )
        self._running_subtasks = len(self._deployment.subtasks)
        self.reach(FaultPoint.RESTORED)
        self._link.send(Deployed())

    def _begin(self) -> None:
        deployment = self._deployed()
        self._network.connect(self._peers)
        for subtask in deployment.subtasks:
            subtask.start()
        self._link.send(Running())
        Sampler(deployment, self._clock, self._try_send).start()

    def _inject(self, message: Inject) -> None:
        self._locations.on_triggered(message.checkpoint_id, message.location)
        barrier = Barrier(
            message.checkpoint_id,
            message.trigger_ms,
            is_savepoint=message.savepoint_format is not None,
            is_native=message.savepoint_format is SavepointFormat.NATIVE,
            is_final=message.is_final,
            confirmed_id=message.confirmed_id,
        )
        for subtask in self._deployed().sources:
            subtask.mailbox.post(InjectBarrier(barrier, message.drains))

    def _deployed(self) -> Deployment:
        if self._deployment is None:
            raise InvariantViolated("a slot is deployed before it is told anything else")
        return self._deployment

    # What subtasks report (see SubtaskReporter).

    def reach(self, point: FaultPoint) -> None:
        """Also where a slot that may have been replaced looks before it acts."""
        self._faults.reach(point, self._attempt)
        self._check_vigil()

    def location_of(self, checkpoint_id: CheckpointId) -> str | None:
        return self._locations.of(checkpoint_id)

    def once_heard_of(self, checkpoint_id: CheckpointId, upload: Upload) -> None:
        self._locations.once_heard_of(checkpoint_id, upload)

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None:
        head = snapshot.operators[0]
        self._try_send(
            Acknowledged(
                checkpoint_id=checkpoint_id,
                snapshot=snapshot,
                phases=phases,
                source_records=head.counters.get("records_read", 0),
                watermark_ms=head.watermark_ms,
            )
        )

    def declined(self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception) -> None:
        self._try_send(
            Declined(
                checkpoint_id=checkpoint_id,
                vertex=place.vertex.uid,
                subtask=place.subtask,
                reason=failure_reason(error),
                message=str(error) or type(error).__name__,
            )
        )

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None:
        self._try_send(
            Committed(checkpoint_id=checkpoint_id, vertex=place.vertex.uid, subtask=place.subtask)
        )

    def sources_ended(self, place: ChainPlace) -> None:
        self._try_send(SourcesEnded(vertex=place.vertex.uid, subtask=place.subtask))

    def failed(self, place: ChainPlace, error: BaseException) -> None:
        self._report_failure(place.vertex.uid, place.subtask, error)

    def ended(self, place: ChainPlace) -> None:
        with self._counting:
            self._running_subtasks -= 1
            self._has_ended = self._running_subtasks == 0
        if self._has_ended:
            self._try_send(Ended())

    def _network_failed(self, problem: str) -> None:
        if not self._has_ended:
            self._try_send(PeerLost(problem=problem))

    def _turned_away(self, refused: RefusedConnection) -> None:
        attempt = refused.claim.attempt if refused.claim else Attempt(0)
        what = f"a data connection from {refused.address}: {refused.refusal}"
        self._try_send(StrangerTurnedAway(attempt=attempt, what=what))

    def _report_failure(
        self, vertex: Uid | None, subtask: int | None, error: BaseException
    ) -> None:
        self._try_send(
            Failed(
                vertex=vertex,
                subtask=subtask,
                cause=str(error) or type(error).__name__,
                detail="".join(traceback.format_exception(error)),
                is_fatal=is_fatal(error),
                error=described(error) if isinstance(error, OperatorFailed) else None,
            )
        )

    def _check_vigil(self) -> None:
        objection = self._vigil.objection()
        if objection is not None:
            self._end_stale(objection)

    def _end_stale(self, why: str) -> None:
        """Somebody else does this slot's work by now. The driver hears of it, and refuses."""
        log.error("Slot %d of attempt %d ends: %s.", self._slot, self._attempt, why)
        self._report_failure(None, None, ProtocolError(f"Slot {self._slot} ends: {why}."))
        address = self._address
        with contextlib.suppress(OSError, ProtocolError):  # it may be gone
            where = (address.host, address.port)
            with socket.create_connection(where, FAREWELL_TIMEOUT_S) as connection:
                prove_token(connection, address.token, attempt=self._attempt, slot=self._slot)
        os._exit(EXIT_STALE)

    def _try_send(self, message: Message) -> None:
        """A lost connection is noticed by `serve`, which ends the process."""
        with contextlib.suppress(OSError):
            self._link.send(message)
