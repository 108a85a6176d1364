"""Where the processes of a run listen, under which addresses they are reached, and how encrypted.

Source: Flink's `jobmanager.rpc.address`, `taskmanager.host`, their bind hosts, and
`security.ssl.internal`.
"""

import msgspec


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files, the same on every machine; the key itself never leaves its machine."""

    certificate: str
    key: str
    authority: str


class SlotNetworking(msgspec.Struct, frozen=True, kw_only=True):
    """What every slot is told before it can connect to anybody."""

    host: str = ""  # advertised to the peers; empty: the address from which it reaches the driver
    bind_host: str = ""  # listened on; empty: the advertised one
    tls: TlsFiles | None = None


class DriverNetworking(msgspec.Struct, frozen=True, kw_only=True):
    host: str  # under which slots reach the driver
    bind_host: str  # that it listens on
    port: int  # 0: any free one
    slots: SlotNetworking
