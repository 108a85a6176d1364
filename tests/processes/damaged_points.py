"""Finds the manifests of a run's checkpoints, and alters them without the run's knowledge."""

from pathlib import Path

from pipelines.domain.run import RunDirectory


def manifests(directory: RunDirectory) -> list[Path]:
    """Returns the manifests, oldest first."""
    return sorted(directory.path.glob("checkpoints/chk-*/manifest.json"), key=number_of)


def alter(manifest: Path) -> None:
    """Alters the manifest in one step, since a process may be reading it."""
    altered = manifest.with_name(".altered")
    altered.write_bytes(manifest.read_bytes().replace(b"numbers", b"letters", 1))
    altered.replace(manifest)


def number_of(manifest: Path) -> int:
    return int(manifest.parent.name.removeprefix("chk-"))
