"""Flink's own command line and web page, from Maven Central, and a dashboard for them."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ftdash.embedded.installation import LOOPBACK
from tests.java_programs import JavaProgram
from tests.new_home import new_home
from tests.reserved_ports import reserved_port

VERSION = "2.3.0"
FLINK = JavaProgram(
    "Flink",
    VERSION,
    f"""
    <dependency>
      <groupId>org.apache.flink</groupId><artifactId>flink-clients</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.flink</groupId><artifactId>flink-runtime-web</artifactId>
      <version>{VERSION}</version>
    </dependency>
  """,
)
WEB_JAR = f"flink-runtime-web-{VERSION}.jar"
MAIN = "org.apache.flink.client.cli.CliFrontend"
COMMAND_S = 150


@dataclass(frozen=True, slots=True)
class FlinkDashboard:
    address: str  # host:port
    token: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs what `bin/flink` of a distribution runs: its class, with the settings in a directory."""

    directory: Path
    dashboard: FlinkDashboard

    def run(self, action: str, *words: str, token: str = "") -> tuple[int, str]:
        """Returns the exit status and the whole output. Raises ProgramMissing."""
        (self.directory / "config.yaml").touch()
        environment = {
            **os.environ,
            "FLINK_CONF_DIR": str(self.directory),
            "FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {token or self.dashboard.token}",
        }
        line = [*self._command(), action, "-m", self.dashboard.address, *words]
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=COMMAND_S
        )
        return done.returncode, done.stdout + done.stderr

    def _command(self) -> list[str]:
        """Returns the command.

        The first run leaves an archive of its classes, so that the others start in half the time.
        """
        classes = self.directory / "classes.jsa"
        use = "SharedArchiveFile" if classes.exists() else "ArchiveClassesAtExit"
        return FLINK.command(MAIN, options=[f"-XX:{use}={classes}"])


def unpack_web_page(directory: Path) -> Path:
    """Unpacks the static files. Raises ProgramMissing."""
    (jar,) = [each for each in FLINK.jars() if each.name == WEB_JAR]
    with zipfile.ZipFile(jar) as packed:
        packed.extractall(directory, [n for n in packed.namelist() if n.startswith("web/")])
    return directory / "web"


@contextmanager
def flink_dashboard(home: Path, web: Path | None = None) -> Iterator[FlinkDashboard]:
    """Starts a dashboard. `web` is the directory with the files of the web page."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.web.patient_settings",
        "FTDASH_HOME": str(new_home(home)),
        "FTDASH_FLINK_WEB": str(web or ""),
    }
    with reserved_port() as port:
        site = subprocess.Popen(
            [sys.executable, "-m", "tests.web.flink_site", str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            _ready, token = (site.stdout.readline() if site.stdout else "").split()
            yield FlinkDashboard(f"{LOOPBACK}:{port}", token)
        finally:
            site.terminate()
            site.communicate()
