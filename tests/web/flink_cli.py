"""The unmodified command line of Flink against this dashboard, command by command.

    python -m tests.web.flink_cli FLINK_HOME

FLINK_HOME is an unpacked distribution of Flink 2.3, or the folder `pyflink` of the wheel
`apache-flink`. Not among the tests: it is 200 MB that nothing else needs. Exit status 1: a command
did not end as expected.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ftdash.embedded.ports import LOOPBACK, free_port

COMMAND_S = 150
JOB = re.compile(r"([0-9a-f]{32}) : (\S+) \(RUNNING\)")
SAVEPOINT = re.compile(r"Path: (\S+)")


@dataclass(frozen=True, slots=True)
class Flink:
    home: Path
    address: str
    token: str

    def run(self, command: str, *words: str) -> tuple[int, str]:
        environment = {
            **os.environ,
            "FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {self.token}",
            "FLINK_CONF_DIR": str(self.home / "conf"),
            "FLINK_LOG_DIR": tempfile.gettempdir(),
        }
        line = [str(self.home / "bin" / "flink"), command, "-m", self.address, *words]
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=COMMAND_S
        )
        return done.returncode, done.stdout + done.stderr


def judge(flink: Flink) -> bool:
    """Whether every command did what it should; each is told in a line."""
    code, text = flink.run("list")
    jobs = {name: job for job, name in JOB.findall(text)}
    ok = told("list", code == 0 and set(jobs) == {"flights", "full-disk"}, text)
    if not ok:
        return False
    job = jobs["flights"]
    code, text = flink.run("savepoint", job)
    path = (SAVEPOINT.findall(text) or [""])[0]
    ok &= told("savepoint", code == 0 and bool(path), text)
    for name, words, status, expected in (
        ("savepoint", ["-type", "native", job], 0, "Savepoint completed"),
        ("savepoint", ["-d", path], 0, "disposed"),
        ("savepoint", [job, "/elsewhere"], 1, "leave the directory away"),
        ("savepoint", [jobs["full-disk"]], 1, "No space is left on the device"),
        ("checkpoint", [job], 0, "completed"),
        ("checkpoint", ["-full", job], 0, "completed"),
        ("stop", ["--drain", job], 0, "Savepoint completed"),
        ("cancel", [jobs["full-disk"]], 0, "Cancelled job"),
        ("list", ["-a"], 0, "(FINISHED)"),
    ):
        code, text = flink.run(name, *words)
        ok &= told(f"{name} {' '.join(words)}", code == status and expected in text, text)
    stranger = Flink(flink.home, flink.address, "wrong")
    code, text = stranger.run("list")
    return ok & told("list with a wrong token", code == 1 and "opens nothing" in text, text)


def told(what: str, is_right: bool, text: str) -> bool:
    print(f"{'as expected' if is_right else 'NOT AS EXPECTED'}: flink {what}", flush=True)
    if not is_right:
        print(text)
    return is_right


def main() -> int:
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        site = subprocess.Popen(
            [sys.executable, "-m", "tests.web.flink_site", str(port)],
            env={**os.environ, "FTDASH_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            ready = (site.stdout.readline() if site.stdout else "").split()
            flink = Flink(Path(sys.argv[1]), f"{LOOPBACK}:{port}", ready[-1])
            return 0 if judge(flink) else 1
        finally:
            site.terminate()
            site.wait()


if __name__ == "__main__":
    sys.exit(main())
