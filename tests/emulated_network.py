"""Machines on a network that can delay, lose or hold back every packet.

A machine is a network namespace with a TUN device. One thread here carries the packets from one
machine to the other, as the links between them say. A packet that is held back gets no answer, and
neither end hears of it, as when a cable is cut. Needs root, iproute2 and /dev/net/tun.
"""

import ctypes
import fcntl
import heapq
import os
import random
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from tests.standalone_cluster import CannotHaveCluster, ip

TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x1001
CLONE_NEWNET = 0x40000000
MTU = 9_000
MACHINES = "FTDASH_TEST_MACHINES"
"""The environment variable with the namespaces of driver and slots, separated by commas."""

Ends = tuple[str, str]  # addresses: from, to


@dataclass(slots=True)
class Link:
    delay_s: float = 0.0
    loss: float = 0.0


@dataclass(slots=True)
class EmulatedNetwork:
    """`addresses[0]` is the driver's; the others belong to slots 0, 1, ..."""

    namespaces: list[str]
    addresses: list[str]
    _devices: dict[str, int]  # address -> descriptor
    _link: Link = field(default_factory=Link)
    _cut: frozenset[Ends] = frozenset()
    _waiting: list[tuple[float, int, str, bytes]] = field(default_factory=list)
    _draws: random.Random = field(default_factory=lambda: random.Random(1))
    _is_closed: bool = False

    @property
    def environment(self) -> dict[str, str]:
        return {MACHINES: ",".join(self.namespaces)}

    def cut(self, *ends: Ends) -> None:
        """Stops all packets from one end to the other from now on; neither end hears of that."""
        self._cut = self._cut.union(ends)

    def heal(self) -> None:
        self._cut = frozenset()

    def degrade(self, link: Link) -> None:
        self._link = link

    def carry(self) -> None:
        """Carries packets until the network is closed."""
        with selectors.DefaultSelector() as selector:
            for device in self._devices.values():
                selector.register(device, selectors.EVENT_READ)
            while not self._is_closed:
                for key, _ in selector.select(0.002 if self._waiting else 0.02):
                    self._take(key.fd)
                self._deliver_due()

    def close(self) -> None:
        self._is_closed = True

    def _take(self, device: int) -> None:
        with suppress(BlockingIOError):
            while True:
                packet = os.read(device, MTU + 64)
                if packet[0] >> 4 == 4:  # IPv4; there is no other traffic here
                    self._accept(packet)

    def _accept(self, packet: bytes) -> None:
        ends = (socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20]))
        is_lost = ends in self._cut or self._draws.random() < self._link.loss
        if ends[1] in self._devices and not is_lost:
            due = time.monotonic() + self._link.delay_s
            heapq.heappush(self._waiting, (due, len(self._waiting), ends[1], packet))

    def _deliver_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(self._waiting)
            with suppress(OSError):  # the machine takes no more, or is gone: the packet is lost
                os.write(self._devices[to], packet)


@contextmanager
def emulated_network(machines: int) -> Iterator[EmulatedNetwork]:
    """Raises CannotHaveCluster if this user may not set one up."""
    name = f"ft{secrets.token_hex(3)}"
    namespaces = [f"{name}-{index}" for index in range(machines)]
    addresses = [f"10.98.0.{index + 1}" for index in range(machines)]
    with ExitStack() as undo:
        devices = {
            address: _machine(undo, namespace, address)
            for namespace, address in zip(namespaces, addresses, strict=True)
        }
        network = EmulatedNetwork(namespaces, addresses, devices)
        carrier = threading.Thread(target=network.carry, name="network", daemon=True)
        carrier.start()
        undo.callback(carrier.join)
        undo.callback(network.close)
        yield network


def enter_machine(index: int) -> None:
    """Moves this process, still single-threaded, to the machine that its environment names."""
    namespaces = os.environ.get(MACHINES)
    if namespaces is None:
        return
    with open(f"/run/netns/{namespaces.split(',')[index]}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "this process cannot enter its machine")


def _machine(undo: ExitStack, namespace: str, address: str) -> int:
    device = namespace.replace("-", "")
    ip("netns", "add", namespace)
    undo.callback(ip, "netns", "del", namespace)
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        undo.callback(os.close, tun)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN_WITHOUT_HEADER))
    except OSError as error:
        raise CannotHaveCluster(f"/dev/net/tun: {error}") from error
    ip("link", "set", device, "netns", namespace)
    ip("-n", namespace, "addr", "add", f"{address}/24", "dev", device)
    ip("-n", namespace, "link", "set", device, "mtu", str(MTU), "up")
    ip("-n", namespace, "link", "set", "lo", "up")
    return tun
