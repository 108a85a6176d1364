"""How fast is one channel between two processes, and what does a batch cost?

Run it by hand: `python -m bench.speed.channel_throughput`. It prints one JSON object.

Expected beforehand, on two cores with both processes on one machine: serialization copies a batch
once, and the kernel copies it once on each side, at some 6 GB/s a copy, so about 2 GB/s for 1.5 MB
batches. A batch takes two system calls and some 10 microseconds of Python, so about 50,000 batches
of 1 KB a second.
"""

import json
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import Output, PeerAddress
from pipelines.channels.gate import Gate
from pipelines.channels.slot_network import SlotNetwork
from pipelines.domain.elements import Element, EndOfInput, Records, Watermark
from pipelines.domain.ids import Attempt, ChannelId

OUT, BACK = ChannelId("there"), ChannelId("back")
ROUNDS = 5
COLUMNS = 3


@dataclass(frozen=True)
class Writer:
    """Waits for credit before each element, as a subtask does."""

    output: Output
    woken: threading.Event

    def send(self, element: Element) -> None:
        while not self.output.flush():
            self.woken.wait()
            self.woken.clear()
        self.output.send(element)


@dataclass(frozen=True)
class Reader:
    gate: Gate
    woken: threading.Event

    def take(self) -> Element:
        while (polled := self.gate.poll()) is None:
            self.woken.wait()
            self.woken.clear()
        return polled[1]


def main() -> None:
    token = secrets.token_hex(16)
    network, reader = start(0, token, BACK)
    command = [sys.executable, "-m", "bench.speed.channel_throughput", token]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin
        assert peer.stdout
        peer.stdin.write(json.dumps(network.address) + "\n")
        peer.stdin.flush()
        host, port = json.loads(peer.stdout.readline())
        network.connect([PeerAddress(1, host, port)])
        output = writer(network, OUT, 1)

        result = {
            "gigabytes_per_s_of_1.5_MB_batches": spread(
                [streamed(output, reader, batch(62_500), 1_500)[1] / 1e9 for _ in range(ROUNDS)]
            ),
            "batches_per_s_of_1_KB": spread(
                [streamed(output, reader, batch(42), 50_000)[0] for _ in range(ROUNDS)]
            ),
            "round_trip_ms_of_1.5_MB": spread(round_trips(output, reader, batch(62_500), 300)),
            "round_trip_ms_of_1_KB": spread(round_trips(output, reader, batch(42), 300)),
            "microseconds_per_batch_within_a_slot": spread(
                [within_a_slot(batch(42), 20_000) for _ in range(ROUNDS)]
            ),
            "cores": os.cpu_count(),
        }
        output.send(EndOfInput())
    network.close()
    print(json.dumps(result, indent=1))


def streamed(output, reader: Reader, records: Records, count: int) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Measures batches and bytes a second, until the other side has seen the last batch."""
    started = time.perf_counter()
    for _ in range(count):
        output.send(records)
    output.send(Watermark(0))
    reader.take()
    seconds = time.perf_counter() - started
    return count / seconds, count * records.batch.nbytes / seconds


def round_trips(output, reader: Reader, records: Records, count: int) -> list[float]:  # type: ignore[no-untyped-def]
    times_ms = []
    for _ in range(count):
        started = time.perf_counter()
        output.send(records)
        output.send(Watermark(0))
        reader.take()
        times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms


def within_a_slot(records: Records, count: int) -> float:
    network, reader = start(0, secrets.token_hex(16), OUT)
    output = writer(network, OUT, 0)
    started = time.perf_counter()
    for _ in range(count):
        output.send(records)
        reader.take()
    seconds = time.perf_counter() - started
    network.close()
    return seconds / count * 1e6


def echo(token: str) -> None:
    """The other process: takes everything, and answers each watermark."""
    network, reader = start(1, token, OUT)
    print(json.dumps(network.address), flush=True)
    host, port = json.loads(sys.stdin.readline())
    network.connect([PeerAddress(0, host, port)])
    output = writer(network, BACK, 0)
    while not isinstance(element := reader.take(), EndOfInput):
        if isinstance(element, Watermark):
            output.send(element)
    output.send(EndOfInput())
    network.close()


def start(slot: int, token: str, channel: ChannelId) -> tuple[SlotNetwork, Reader]:
    network = SlotNetwork(slot, Attempt(1), token, on_failure=lambda reason: None)
    gate, woken = Gate([channel]), threading.Event()
    gate.on_available(woken.set)
    network.register_gate(gate)
    return network, Reader(gate, woken)


def writer(network: SlotNetwork, channel: ChannelId, slot: int) -> Writer:
    output, woken = network.output(channel, slot), threading.Event()
    output.on_available(woken.set)
    return Writer(output, woken)


def batch(rows: int) -> Records:
    return Records(pa.record_batch({f"c{i}": np.arange(rows) for i in range(COLUMNS)}))


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    named = {"median": statistics.median(ordered), "lowest": ordered[0], "highest": ordered[-1]}
    return {name: round(value, 3) for name, value in named.items()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        echo(sys.argv[1])
    else:
        main()
