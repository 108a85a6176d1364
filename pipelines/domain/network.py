"""Where the processes of a run listen, how others reach them, and how they encrypt.

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
    """What every slot needs to know before it can connect to any process."""

    host: str = ""  # announced to the peers; empty: the address from which it reaches the driver
    bind_host: str = ""  # to listen on; empty: the announced one
    tls: TlsFiles | None = None


class DriverNetworking(msgspec.Struct, frozen=True, kw_only=True):
    host: str  # by which slots reach the driver
    bind_host: str  # to listen on
    port: int  # 0: any free one
    slots: SlotNetworking
