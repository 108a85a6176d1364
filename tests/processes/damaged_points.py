"""Finds the manifests of a run's checkpoints, and alters them behind its back."""

from pathlib import Path

from pipelines.domain.run import RunDirectory


def manifests(directory: RunDirectory) -> list[Path]:
    """Oldest first."""
    return sorted(directory.path.glob("checkpoints/chk-*/manifest.json"), key=number_of)


def alter(manifest: Path) -> None:
    """In one step: a process may be reading it."""
    altered = manifest.with_name(".altered")
    altered.write_bytes(manifest.read_bytes().replace(b"numbers", b"letters", 1))
    altered.replace(manifest)


def number_of(manifest: Path) -> int:
    return int(manifest.parent.name.removeprefix("chk-"))
