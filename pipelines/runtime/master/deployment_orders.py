"""Builds the deployment that an attempt's slots get: what to run, how, and from which point."""

from pipelines.domain.faults import parse_faults
from pipelines.domain.places import MEMORY, scheme_of
from pipelines.domain.poison import Isolation
from pipelines.domain.snapshots import Manifest
from pipelines.runtime.control import Deploy
from pipelines.runtime.master.attempt_host import AttemptHost
from pipelines.runtime.master.run_parts import RunParts
from pipelines.runtime.master.starting_point import StartingPoint, forgets_state


def deployment_of(
    parts: RunParts, host: AttemptHost, start: StartingPoint | None, isolation: Isolation
) -> Deploy:
    """`start` None: from the beginning."""
    spec, settings = parts.spec, parts.settings
    return Deploy(
        run_id=spec.run_id,
        pipeline=spec.pipeline,
        parameters=spec.parameters,
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        peers=host.peers(),
        storage_roots=parts.storage_roots,
        max_memory_state_bytes=settings.max_memory_state_bytes,
        compresses_snapshots=settings.compresses_snapshots,
        digests_output=settings.digests_output,
        restore_location=start.location if start else None,
        restore_manifest=_manifest_in_memory(parts, start),
        forgets_state=forgets_state(settings, start),
        dropped_states=list(start.dropped_states) if start else [],
        barriers=settings.barriers,
        inputs=settings.inputs,
        state=settings.state,
        faults=list(parse_faults(settings.faults)),
        quarantine=parts.places.quarantine,
        isolation=isolation,
        replayed_sources=spec.replayed_sources,
        beginning=parts.beginning.packed,
    )


def _manifest_in_memory(parts: RunParts, start: StartingPoint | None) -> Manifest | None:
    """A point that is only in this process's memory travels with the deployment."""
    location = start.location if start else None
    if location is None or scheme_of(location) != MEMORY:
        return None
    return parts.store.manifest(location)
