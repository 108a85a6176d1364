"""One run, several kinds of storage: the scheme of each location decides its kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.storage.store import Publication
from pipelines.storage.stores import CheckpointStores
from tests.contracts.stored_points import named_environment
from tests.object_server import ObjectServer, never
from tests.unit.storage.points import SCHEMA, manifest_of, rows


@pytest.fixture
def server(objects: ObjectServer) -> Iterator[ObjectServer]:
    objects.plan(never)
    with named_environment(objects.environment):
        yield objects


def test_each_location_has_its_own_kind_of_store(tmp_path: Path, server: ObjectServer) -> None:
    root = server.new_root()
    stores = CheckpointStores([str(tmp_path), root], max_memory_state_bytes=1 << 20)
    places = [f"{tmp_path}/chk-1", f"{root}/chk-1", "memory://run-1/chk-1"]

    for place in places:
        file = stores.write_batches(place, "s-0", SCHEMA, [rows()], open_format=False)
        assert stores.publish(place, manifest_of([file])) is Publication.PUBLISHED
        assert list(stores.read_batches(place, file)) == [rows()]
        assert stores.verify(place) == []
        assert stores.published(place.rpartition("/")[0]) == [place]

    assert len(list(tmp_path.rglob("manifest.json"))) == 1
    for place in places:
        stores.discard(place)
        assert stores.published(place.rpartition("/")[0]) == []


@pytest.mark.parametrize("place", ["ftp://host/chk-1", "gs://bucket/chk-1", "file:///chk-1"])
def test_an_unknown_storage_scheme_is_refused(tmp_path: Path, place: str) -> None:
    stores = CheckpointStores([str(tmp_path)], max_memory_state_bytes=1)

    with pytest.raises(Rejected, match="outside the configured storage"):
        stores.manifest(place)


def test_a_point_in_memory_is_never_written_to_a_root_on_disk(tmp_path: Path) -> None:
    stores = CheckpointStores([str(tmp_path)], max_memory_state_bytes=1 << 20)

    stores.publish("memory://../etc/chk-1", manifest_of([]))

    assert list(tmp_path.rglob("manifest.json")) == []
