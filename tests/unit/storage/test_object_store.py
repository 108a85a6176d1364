"""An object store that fails, hangs, lies about lengths and dies, at every single request."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from obstore.exceptions import GenericError

from pipelines.domain.errors import CorruptSnapshot, InvariantViolated, Retryable
from pipelines.domain.snapshots import FileHandle
from pipelines.storage.object_store import (
    PUBLISH_TRIES,
    ObjectCheckpointStore,
    ObjectStoreLimits,
    reason_of,
)
from pipelines.storage.store import Publication
from tests.contracts.stored_points import named_environment
from tests.object_server import (
    BUCKET,
    CREDENTIALS,
    Fault,
    ObjectServer,
    Plan,
    from_number,
    never,
    on_number,
    on_path,
    once,
)
from tests.unit.storage.points import SCHEMA, manifest_of, rows

REQUESTS_MAX = 50
RETRIES = 2
PART_BYTES = 5 << 20  # S3's minimum
PATIENCE_MS = 20_000  # far more than a busy machine needs
IMPATIENCE_MS = 800  # less than a slow answer takes
PASSING = [Fault.SERVER_ERROR, Fault.SLOW_DOWN, Fault.CUT_UPLOAD, Fault.LOST_ANSWER]
LASTING = [
    Fault.SERVER_ERROR,
    Fault.SLOW_DOWN,
    Fault.CUT_UPLOAD,
    Fault.SLOW,
    Fault.DENIED,
    Fault.ALTERED,
]


@pytest.fixture
def server(objects: ObjectServer) -> Iterator[ObjectServer]:
    objects.plan(never)
    with named_environment(objects.environment):
        yield objects
    objects.plan(never)


@pytest.fixture
def root(server: ObjectServer) -> str:
    return server.new_root()


@pytest.mark.slow
@pytest.mark.parametrize("last", [Fault.CUT_UPLOAD, Fault.LOST_ANSWER])
def test_a_death_at_any_request_leaves_a_point_whole_or_absent_and_retryable(
    server: ObjectServer, root: str, last: Fault
) -> None:
    """`last` decides if the store still carries out the last request of the dying process."""
    for number in range(1, REQUESTS_MAX):
        location = f"{root}/chk-{number}"
        server.plan(dying_at(number, last))

        outcome = ending_of(partial(take_point, store_at(root, retries=0), location))

        request_count = len(server.requests)
        server.plan(never)
        assert_whole_or_absent(root, location)
        assert take_point(store_at(root), location) in (
            Publication.PUBLISHED,
            Publication.ALREADY_PUBLISHED,
        )
        assert store_at(root).verify(location) == []
        if request_count < number:
            assert outcome is Publication.PUBLISHED
            assert number == 4  # two files and the manifest, one request each
            return
    pytest.fail("a point takes a bounded number of requests")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fault"),
    [(n, fault) for n in (1, 2, 3) for fault in PASSING] + [(1, Fault.SLOW), (3, Fault.SLOW)],
)
def test_a_transient_fault_does_not_fail_a_point(
    server: ObjectServer, root: str, fault: Fault, number: int
) -> None:
    location = f"{root}/chk-1"
    server.plan(on_number(number, fault))

    outcome = take_point(store_at(root, timeout_ms=patience_for(fault)), location)

    is_own_met_again = number == 3 and fault in (Fault.LOST_ANSWER, Fault.SLOW)
    assert outcome is (Publication.ALREADY_PUBLISHED if is_own_met_again else Publication.PUBLISHED)
    assert store_at(root).verify(location) == []


def test_a_manifest_whose_reply_was_lost_is_recognised_without_a_retry(
    server: ObjectServer, root: str
) -> None:
    store = store_at(root, retries=0)
    server.plan(once(on_path("manifest.json", Fault.LOST_ANSWER)))

    assert take_point(store, f"{root}/chk-1") is Publication.ALREADY_PUBLISHED


def test_a_lost_reply_does_not_hide_the_manifest_of_another_attempt(
    server: ObjectServer, root: str
) -> None:
    location = f"{root}/chk-1"
    take_point(store_at(root), location, attempt=2)
    server.plan(once(on_path("manifest.json", Fault.LOST_ANSWER)))

    assert take_point(store_at(root), location, attempt=1) is Publication.CONFLICT
    assert store_at(root).manifest(location).attempt == 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", LASTING)
@pytest.mark.parametrize("what", ["count-0", "manifest.json"])
def test_a_lasting_fault_is_reported_by_name_after_a_bounded_number_of_tries(
    server: ObjectServer, root: str, fault: Fault, what: str
) -> None:
    location = f"{root}/chk-1"
    server.plan(on_path(what, fault))

    store = store_at(root, timeout_ms=patience_for(fault))
    outcome = ending_of(partial(take_point, store, location))

    tries = [r for r in server.requests if what in r.path and r.method == "PUT"]
    assert 1 <= len(tries) <= (1 + RETRIES) * PUBLISH_TRIES
    if fault is Fault.SLOW and what == "manifest.json":
        assert outcome is Publication.ALREADY_PUBLISHED  # it succeeded, and a retry finds it
        return
    assert isinstance(outcome, Retryable)
    assert what in str(outcome)
    assert location in str(outcome)
    assert len(str(outcome).splitlines()) == 1
    assert not any(secret in str(outcome) for secret in CREDENTIALS.values())
    server.plan(never)
    assert_whole_or_absent(root, location)


def test_a_file_that_is_altered_in_transit_is_not_stored(server: ObjectServer, root: str) -> None:
    location = f"{root}/chk-1"
    server.plan(on_path("count-0", Fault.ALTERED))

    with pytest.raises(Retryable, match="count-0"):
        write(store_at(root), location, "count-0")

    server.plan(never)
    assert store_at(root).names(location) == []


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.SLOW_DOWN, Fault.CUT_ANSWER])
def test_a_read_that_fails_once_is_repeated(server: ObjectServer, root: str, fault: Fault) -> None:
    location = f"{root}/chk-1"
    take_point(store_at(root), location)
    server.plan(once(on_path("count-1", fault, method="GET")))

    assert store_at(root).verify(location) == []


@pytest.mark.parametrize("what", ["count-1", "manifest.json"])
@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.CUT_ANSWER, Fault.DENIED])
def test_an_unreachable_storage_does_not_make_a_point_damaged(
    server: ObjectServer, root: str, fault: Fault, what: str
) -> None:
    location = f"{root}/chk-1"
    take_point(store_at(root), location)
    server.plan(on_path(what, fault, method="GET"))

    with pytest.raises(Retryable, match=f"{location}/{what}.* cannot be read"):
        store_at(root).verify(location)


def test_taking_and_restoring_a_point_lists_and_copies_nothing(
    server: ObjectServer, root: str
) -> None:
    location, store = f"{root}/chk-1", store_at(root)

    take_point(store, location)
    for subtask in store.manifest(location).subtasks:
        for state in subtask.operators[0].states:
            list(store.read_batches(location, state.file))

    asked = [(request.method, request.path.count("/")) for request in server.requests]
    depth = location.count("/")  # every request names an object below the point
    assert [method for method, _ in asked] == ["PUT"] * 3 + ["GET"] * 3
    assert all(slashes == depth for _, slashes in asked)
    assert not any("?" in request.path for request in server.requests)


def test_a_check_without_reading_asks_only_for_the_length_of_a_file(
    server: ObjectServer, root: str
) -> None:
    store, location = store_at(root), f"{root}/chk-1"
    file = store.write_batches(location, "count-0", SCHEMA, [rows()], open_format=False)
    server.plan(never)

    store.problem_of(location, file, reads=False)

    assert [request.method for request in server.requests] == ["HEAD"]


def test_listing_points_asks_only_for_the_requested_ones(server: ObjectServer, root: str) -> None:
    for number in range(5):
        store_at(root).publish(f"{root}/savepoint-run-{number}-7", manifest_of([]))
    server.plan(never)

    found = store_at(root).published(root, among=["savepoint-run-3-7"])

    assert found == [f"{root}/savepoint-run-3-7"]
    assert [request.method for request in server.requests] == ["HEAD"]


@pytest.mark.slow
def test_a_large_file_is_uploaded_in_parts_and_read_back_whole(
    server: ObjectServer, root: str
) -> None:
    batches = [large_batch(n) for n in range(6)]

    file = write(store_at(root), f"{root}/chk-1", "large", batches)

    parts = [request for request in server.requests if "partNumber" in request.path]
    assert len(parts) == -(-file.length // PART_BYTES)
    assert all(part.length <= PART_BYTES for part in parts)
    assert list(store_at(root).read_batches(f"{root}/chk-1", file)) == batches


@pytest.mark.slow
def test_a_large_file_never_replaces_one_of_the_same_name(server: ObjectServer, root: str) -> None:
    location = f"{root}/chk-1"
    batches = [large_batch(n) for n in range(2)]
    file = write(store_at(root), location, "large", batches)

    with pytest.raises(InvariantViolated, match=r"has a file large\.arrow already"):
        write(store_at(root), location, "large", [large_batch(2), large_batch(3)])

    assert list(store_at(root).read_batches(location, file)) == batches


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.CUT_UPLOAD])
@pytest.mark.parametrize("where", ["partNumber=2", "uploadId"])
def test_a_failed_upload_of_a_large_file_leaves_nothing(
    server: ObjectServer, root: str, fault: Fault, where: str
) -> None:
    method = "PUT" if "part" in where else "POST"
    server.plan(on_path(where, fault, method=method))

    outcome = ending_of(
        partial(write, store_at(root), f"{root}/chk-1", "large", [large_batch(n) for n in range(3)])
    )

    server.plan(never)
    assert isinstance(outcome, Retryable)
    assert store_at(root).names(f"{root}/chk-1") == []
    assert b"<UploadId>" not in server.ask("GET", f"/{BUCKET}?uploads")[1]


@pytest.mark.slow
def test_an_error_in_the_rows_reaches_the_caller_and_leaves_nothing(
    server: ObjectServer, root: str
) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield large_batch(0)
        yield large_batch(1)
        raise ZeroDivisionError("a bug in the state")

    with pytest.raises(ZeroDivisionError):
        write(store_at(root), f"{root}/chk-1", "large", broken())

    assert store_at(root).names(f"{root}/chk-1") == []
    assert b"<UploadId>" not in server.ask("GET", f"/{BUCKET}?uploads")[1]


@pytest.mark.slow
def test_an_upload_holds_only_a_few_parts_of_the_file_in_memory(
    server: ObjectServer, root: str
) -> None:
    """Uploads 80 MiB in a separate process and measures its memory."""
    program = [sys.executable, "-m", "tests.unit.storage.large_upload", root, "80"]

    grown_mib = float(subprocess.run(program, check=True, capture_output=True).stdout)

    assert grown_mib < 40  # three parts of 8 MiB, plus what the allocator keeps


def test_discarding_a_point_deletes_its_manifest_first(server: ObjectServer, root: str) -> None:
    location = f"{root}/chk-1"
    take_point(store_at(root), location)
    files = [name for name in store_at(root).names(location) if name != "manifest.json"]
    server.plan(from_number(2, Fault.CUT_UPLOAD))  # only the first request arrives

    store_at(root, retries=0).discard(location)

    server.plan(never)
    assert store_at(root).names(location) == files
    store_at(root).discard(location)
    assert store_at(root).names(location) == []


def test_a_manifest_that_cannot_be_deleted_keeps_its_point_whole(
    server: ObjectServer, root: str
) -> None:
    location = f"{root}/chk-1"
    take_point(store_at(root), location)
    server.plan(lambda request: Fault.SERVER_ERROR)

    with pytest.raises(Retryable, match=r"manifest\.json cannot be deleted"):
        store_at(root).discard(location)

    server.plan(never)
    assert store_at(root).verify(location) == []


def test_a_death_while_discarding_leaves_the_point_whole_or_absent(
    server: ObjectServer, root: str
) -> None:
    for number in range(1, REQUESTS_MAX):
        location = f"{root}/chk-{number}"
        take_point(store_at(root), location)
        server.plan(from_number(number, Fault.CUT_UPLOAD))

        ending_of(partial(store_at(root, retries=0).discard, location))

        request_count = len(server.requests)
        server.plan(never)
        assert_whole_or_absent(root, location)
        if request_count < number:
            return
    pytest.fail("discarding takes a bounded number of requests")


def test_missing_credentials_are_reported_with_the_variable_to_set() -> None:
    """Without credentials, the library asks for the machine's role, and mentions only that."""
    token = "http://169.254.169.254/latest/api/token"
    said = f"Generic S3 error: Error performing PUT {token} in 5s\n\nDebug source: ..."

    reason = reason_of(GenericError(said))

    assert reason.startswith("there are no credentials; set AWS_ACCESS_KEY_ID")
    assert "Debug" not in reason


@pytest.mark.parametrize("stem", ["räume-0", "a b%2F+c-0", "[x]~&=-0"])
def test_a_file_named_after_an_awkward_uid_can_be_read_back(
    server: ObjectServer, root: str, stem: str
) -> None:
    file = write(store_at(root), f"{root}/chk-1", stem)

    assert list(store_at(root).read_batches(f"{root}/chk-1", file)) == [rows()]
    assert store_at(root).names(f"{root}/chk-1") == [file.name]


def store_at(
    root: str, retries: int = RETRIES, timeout_ms: int = PATIENCE_MS
) -> ObjectCheckpointStore:
    limits = ObjectStoreLimits(
        request_timeout_ms=timeout_ms,
        retries=retries,
        first_backoff_ms=1,
        max_backoff_ms=5,
        part_bytes=PART_BYTES,
    )
    return ObjectCheckpointStore([root], limits)


def patience_for(fault: Fault) -> int:
    return IMPATIENCE_MS if fault is Fault.SLOW else PATIENCE_MS


def dying_at(number: int, last: Fault) -> Plan:
    """Makes the request with this number the last one; the store gets none that follow."""
    after = from_number(number + 1, Fault.CUT_UPLOAD)
    return lambda request: last if request.number == number else after(request)


def take_point(store: ObjectCheckpointStore, location: str, attempt: int = 1) -> Publication:
    """Sends what a checkpoint sends to the store: two files, then the manifest."""
    files = [write(store, location, f"count-{n}") for n in range(2)]
    return store.publish(location, manifest_of(files, attempt))


def write(
    store: ObjectCheckpointStore, location: str, stem: str, batches: object = None
) -> FileHandle:
    given = [rows()] if batches is None else batches
    schema = SCHEMA if batches is None else LARGE
    return store.write_batches(location, stem, schema, given, open_format=False)  # type: ignore[arg-type]


def ending_of(act: object) -> object:
    """Returns the result of `act`, or the Retryable failure that it raises."""
    try:
        return act()  # type: ignore[operator]
    except Retryable as failure:
        return failure


def assert_whole_or_absent(root: str, location: str) -> None:
    store = store_at(root)
    if location in store.published(root):
        assert store.verify(location) == []
    else:
        with pytest.raises(CorruptSnapshot, match=r"manifest\.json is missing"):
            store.manifest(location)


LARGE = pa.schema([("blob", pa.binary())])


def large_batch(number: int) -> pa.RecordBatch:
    """Returns a batch of 3 MiB, so that parts and batches do not end together."""
    return pa.RecordBatch.from_arrays([pa.array([bytes([number]) * (3 << 20)])], schema=LARGE)
