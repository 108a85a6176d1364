"""The inputs on which a parser once failed. The fuzz tests replay them before they draw others.

To add one, copy the line that the failing test prints: an input of bytes into `KEPT`, under the
name of the parser; a request to our own interface into `KEPT_REQUESTS`. Never delete one.
"""

from dataclasses import dataclass

KEPT: dict[str, list[bytes]] = {
    "offsets": [b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"":{"":""}}\n\x80'],
    "file log": [b'v1\n{"path":"","":0,"\x80":0}'],
    "commits": [b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"a":[]}}'],
    "offsets in a directory": [
        b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":99999999999999999999}\n-',
        b'v1\n{"batchWatermarkMs":9223372036854775807,"batchTimestampMs":1}\n-',
    ],
    "explained plan": [
        '{"format":1,"spark":"","operators":[{"id":0,"name":"","schemas":{"":"é"}}],"sources":[]}'.encode()
    ],
    "event log": [
        b'{"\x80":"StreamingQueryListener$Query"}\n',
        b'{"Event":["StreamingQueryListener$Query"]}\n',
        b'{"Event":"org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent",'
        b'"progress":[1]}\n',
    ],
    "answer of Flink": [b'{"a":' + b"[" * 2_000],
    "message of Flink": [b'{"a":' + b"[" * 2_000],
    "lease": [b'{"pid":-1,"process_began_s":0,"host":"","acquired_at":0}'],
    "journal": [
        b'{"sequence":-1,"at_ms":1,"run_id":"run-1","attempt":1,'
        b'"event":{"type":"RunEnded","status":"FINISHED","reason":"over"}}\n',
    ],
    "backup": [b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00\xff"],
    "wheel": [
        b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00!\x00\xea\x0b\x1a\xbd\x04\x00\x00\x00\x04\x00"
        b"\x00\x00\x1b\x00\x00\x00shop-1.0.dist-info/METADATAa: bPK\x01\x02\x14\x03\x14\x00\x00\x00"
        b"\x00\x00\x00\x00!\x00\xea\x0b\x1a\xbd\x04\x00\x00\x00\x04\x00\x00\x00\x1b\x00\x00\x00\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x80\x01\x00\x00\x00\x00shop-1.0.dist-info/METADATAPK\x05\x06\x00"
        b"\x00\x00\x00\x01\x00\x01\x00I\x00\x00\x00\xff\xff\xff\x00\x00\x00"
    ],
    "metadata of a wheel": [b"Requires-Python: >=" + b"1" * 5_000 + b"\n"],
    "pyproject": [
        b'[project]\nname = "../../shop"\n',
        b"[project]\nname = " + b"1" * 300 + b"\n",
        b"[project]\nversion = " + b"1" * 300 + b"\n",
        b"[project]\nversion = " + b"1" * 5_000 + b"\n",
        b"[project]\nversion = " + b"[" * 2_000,
    ],
    "run.json": [b"{"],
    "positions by index": [b'{"backlog":[],"frontier":-1,"stride":2}'],
    "positions by name": [b'{"splits":[{"name":"a","offset":-1}],"has_looked":true}'],
    "beginning of a run": [b"\x00"],
    "JSON lines": [b'null:"{"\n', b"null", b"\n null\nnull\n", b'{"text":"\x80"}\n'],
    "quarantine": [
        b'{"record":"\x80"}\n',
        b'{"record":"{\\"raw\\":\\"a\\"}"}\n',
        b'{"source":"a"}\n',
    ],
    "entry of a Redis stream": ['{"raw":"é"}'.encode(), b'{"n":' + b"[" * 2_000],
    "output to audit": [
        b'{"n":1,"at":null,"price":"one","day":null,"raw":null}',
        b'{"n":' + b"[" * 100_000,
    ],
    "Parquet": [
        b"PAR1\x15\x04\x150\x15.L\x15\x06\x15\x00\x12\x00\x00\x18\x04\x01\x00\t\x01<\x02\x00"
        b"\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x15\x00\x15\x14\x15\x18,"
        b"\x15\x06\x15\x10\x15\x06\x15\x06\x1c\x18\x08\x03\x00\x00\x00\x00\x00\x00\x00\x18"
        b"\x08\x01\x00\x00\x00\x00\x00\x00\x00\x16\x00(\x08\x03\x00\x00\x00\x00\x00\x00\x00"
        b"\x18\x08\x01\x00\x00\x00\x00\x00\x00\x00\x11\x11\x00\x00\x00\n$\x02\x00\x00\x00\x06"
        b"\x01\x02\x03$\x00\x15\x04\x15\x14\x15\x18L\x15\x04\x15\x00\x12\x00\x00\n$\x01\x00"
        b"\x00\x00a\x01\x00\x00\x00c\x15\x00\x15\x12\x15\x16,\x15\x06\x15\x10\x15\x06\x15\x06"
        b"\x1c6\x02(\x01c\x18\x01a\x11\x11\x00\x00\x00\t \x02\x00\x00\x00\x03\x05\x01\x03\x02"
        b"\x15\x04\x19<5\x00\x18\x06schema\x15\x04\x00\x15\x04%\x02\x18\x01\x80\x00\x15\x0c%"
        b"\x02\x18\x04text%\x00L\x1c\x00\x00\x00\x16\x06\x19\x1c\x19,&\x00\x1c\x15\x04\x195"
        b"\x00\x06\x10\x19\x18\x01k\x15\x02\x16\x06\x16\xde\x01\x16\xe0\x01&R&\x08\x1c\x18"
        b"\x08\x03\x00\x00\x00\x00\x00\x00\x00\x18\x08\x01\x00\x00\x00\x00\x00\x00\x00\x16"
        b"\x00(\x08\x03\x00\x00\x00\x00\x00\x00\x00\x18\x08\x01\x00\x00\x00\x00\x00\x00\x00"
        b"\x11\x11\x00\x19,\x15\x04\x15\x00\x15\x02\x00\x15\x00\x15\x10\x15\x02\x00<)\x06\x19"
        b"&\x00\x06\x00\x00\x00&\x00\x1c\x15\x0c\x195\x00\x06\x10\x19\x18\x04text\x15\x02\x16"
        b"\x06\x16|\x16\x84\x01&\x9c\x02&\xe8\x01\x1c6\x02(\x01c\x18\x01a\x11\x11\x00\x19,"
        b"\x15\x04\x15\x00\x15\x02\x00\x15\x00\x15\x10\x15\x02\x00<\x16\x04\x19\x06\x19&\x02"
        b"\x04\x00\x00\x00\x16\xda\x02\x16\x06&\x08\x16\xe4\x02\x00\x19\x1c\x18\x0cARROW:sche"
        b"ma\x18\xec\x01/////6gAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAA"
        b"AIAAABEAAAABAAAANT///8AAAEFEAAAABwAAAAEAAAAAAAAAAQAAAB0ZXh0AAAAAAQABAAEAAAAEAAUAAgA"
        b"BgAHAAwAAAAQABAAAAAAAAECEAAAABwAAAAEAAAAAAAAAAEAAABrAAAACAAMAAgABwAIAAAAAAAAAUAAAAA"
        b"=\x00\x18 parquet-cpp-arrow version 26.0.1\x19,\x1c\x00\x00\x1c\x00\x00\x00\x12\x02"
        b"\x00\x00PAR1"
    ],
}


@dataclass(frozen=True)
class Request:
    method: str
    address: str
    query: str
    body: bytes


KEPT_REQUESTS = [
    Request("POST", "/api/watched-queries/events", "", b'{"events":' + b"[" * 5_000),
]
