"""Java programs from Maven Central that tests drive.

Maven resolves a class path once, and this module keeps it in the user's cache directory. If Maven
or Java 17 is missing, or Maven Central cannot be reached, an error says so.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLDEST_JAVA = 17
MAVEN = ("mvn", "-q", "-B", "-ntp", "-DincludeScope=runtime")
MAVEN_S = 300.0
POM_NAME = "pom.xml"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ftdash</groupId><artifactId>test-program</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""


class ProgramMissing(Exception):
    """Says in a clause why this machine cannot have a program."""


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """`dependencies` is written as in a POM."""

    name: str
    version: str
    dependencies: str

    def command(
        self, main: str, *arguments: str, lives_long: bool = False, options: Iterable[str] = ()
    ) -> list[str]:
        """Returns the command that runs its class `main`. Raises ProgramMissing."""
        memory = ["-Xmx384m", "-XX:+UseSerialGC"]
        compiler = [] if lives_long else ["-XX:TieredStopAtLevel=1"]
        class_path = ":".join(str(jar) for jar in self.jars())
        java = [self._java(), *memory, *compiler, *options]
        return [*java, "-cp", class_path, main, *arguments]

    def jars(self) -> list[Path]:
        """Returns its own jars and those of its dependencies. Raises ProgramMissing."""
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ftdash"
        found = cache / f"{self.name.lower()}-{self.version}" / "class-path"
        if not self._is_whole(found):
            self._fetch(found)
        return [Path(jar) for jar in found.read_text().split(":")]

    @property
    def _pom(self) -> str:
        return POM.format(dependencies=self.dependencies)

    def _is_whole(self, found: Path) -> bool:
        """Returns True if the class path was made for this program and all its jars still exist."""
        pom = found.parent / POM_NAME
        if not found.exists() or not pom.exists() or pom.read_text() != self._pom:
            return False
        return all(Path(jar).exists() for jar in found.read_text().split(":"))

    def _fetch(self, found: Path) -> None:
        if shutil.which("mvn") is None:
            raise ProgramMissing(f"{self.name} is fetched with Maven; there is no mvn on PATH")
        found.parent.mkdir(parents=True, exist_ok=True)
        (found.parent / POM_NAME).write_text(self._pom)
        fetched = subprocess.run(
            [*MAVEN, "dependency:build-classpath", f"-Dmdep.outputFile={found}"],
            cwd=found.parent,
            capture_output=True,
            text=True,
            timeout=MAVEN_S,
        )
        if fetched.returncode:
            why = fetched.stdout[-500:]
            raise ProgramMissing(f"Maven could not fetch {self.name} {self.version}: {why}")

    def _java(self) -> str:
        java = shutil.which("java")
        if java is None:
            raise ProgramMissing(f"{self.name} needs Java 17; there is no java on PATH")
        told = _version_told(java)
        version = re.search(r'version "(\d+)', told)
        if version is None or int(version[1]) < OLDEST_JAVA:
            said = told.splitlines()[:1]
            raise ProgramMissing(f"{self.name} needs Java 17; this one says {said}")
        return java


@cache
def _version_told(java: str) -> str:
    """Asks once per process: each answer takes a third of a second of processor time."""
    return subprocess.run([java, "-version"], capture_output=True, text=True).stderr
