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
    "JSON lines": [b"null", b"\n null\nnull\n", b'{"text":"\x80"}\n'],
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
