"""Decides how this process is reached and what it encrypts with: settings, then environment.

A path or address that differs from machine to machine comes from the environment. The driver never
passes on a private key. A host gives only a `SlotAddress` to a slot that it starts: where the slot
dials, and what it proves there.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.channels.handshake import Tls
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt
from pipelines.domain.run import DriverNetworking, SlotNetworking, TlsFiles
from pipelines.domain.settings import Heartbeat, Settings
from pipelines.domain.settings.resources import TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY

BACKLOG = 256
SLOT_HOST_VARIABLE = "FTDASH_TASKMANAGER_HOST"


def driver_networking(settings: Settings) -> DriverNetworking:
    network = settings.network
    return DriverNetworking(
        host=network.driver_host,
        bind_host=network.driver_bind_host or network.driver_host,
        port=network.driver_port,
        slots=_slot_networking(settings),
    )


def listen(networking: DriverNetworking) -> socket.socket:
    """Raises Rejected naming the settings when the driver cannot listen there."""
    host, port = networking.bind_host, networking.port
    try:
        return socket.create_server((host, port), family=_family(host), backlog=BACKLOG)
    except OSError as error:
        raise Rejected(
            f"The driver cannot listen on {host}, port {port or 'any'}: {error}; change"
            " jobmanager.bind-host, jobmanager.rpc.address or jobmanager.rpc.port."
        ) from error


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _slot_networking(settings: Settings) -> SlotNetworking:
    network, tls = settings.network, settings.tls
    named = TlsFiles(certificate=tls.certificate, key=tls.key, authority=tls.authority)
    return SlotNetworking(
        host=network.slot_host,
        bind_host=network.slot_bind_host,
        tls=named if tls.enabled else None,
    )


def load_tls(networking: SlotNetworking) -> Tls | None:
    """Returns None if connections are not encrypted. Raises Rejected naming the missing setting and
    its variable, or the file that cannot be used."""
    if networking.tls is None:
        return None
    return Tls.load(_on_this_machine(networking.tls, os.environ))


def slot_hosts(networking: SlotNetworking, local_address: str) -> tuple[str, str]:
    """Returns the address at which peers reach the data port, and the address it listens on."""
    host = os.environ.get(SLOT_HOST_VARIABLE) or networking.host or local_address
    return host, networking.bind_host or host


def _on_this_machine(named: TlsFiles, environment: Mapping[str, str]) -> TlsFiles:
    def path(what: str, key: str, named: str, variable: str) -> str:
        if not (found := named or environment.get(variable, "")):
            raise Rejected(
                f"security.ssl.internal.enabled is true, but there is no {what}: set {key}, or"
                f" {variable} on every machine."
            )
        return found

    return TlsFiles(
        certificate=path(
            "certificate", TLS_CERTIFICATE, named.certificate, "FTDASH_TLS_CERTIFICATE_FILE"
        ),
        key=path("key", TLS_KEY, named.key, "FTDASH_TLS_KEY_FILE"),
        authority=path("authority", TLS_AUTHORITY, named.authority, "FTDASH_TLS_CA_FILE"),
    )


@dataclass(frozen=True, slots=True)
class SlotAddress:
    """The address that a host gives its slot. The token is the attempt's secret, never logged."""

    host: str
    port: int
    token: str
    attempt: Attempt
    heartbeat: Heartbeat
    networking: SlotNetworking
