"""Addresses of savepoints: facts, contents, verification and comparison by a worker.

`actions` has the addresses that take, label and delete one.
"""

from django.http import HttpRequest
from ninja import Status

from ftdash.api.own import shapes
from ftdash.api.own.door import Entered, api, known
from ftdash.api.own.shapes import Count, InPath, Limit, Page, Text
from ftdash.checkpoints.answers import Savepoint, SavepointPage
from ftdash.checkpoints.queries import savepoints as savepoint_queries
from ftdash.points.services import comparisons
from ftdash.points.services import restore as point_services
from ftdash.points.services.comparisons import Comparison
from pipelines.domain.errors import InvariantViolated
from pipelines.points.contents import OperatorInside, RowsPage, ShelfLife

ASKED = 202


@api.get("/pipelines/{name}/savepoints", response=SavepointPage)
def savepoints(
    request: HttpRequest, name: InPath, page: Page = 1, per_page: Limit = 25
) -> SavepointPage:
    """Newest first, including those without files; a page beyond the last is the last."""
    return savepoint_queries.savepoints(name, page, per_page)


@api.get("/savepoints/{savepoint_key}", response=Savepoint)
def savepoint(request: HttpRequest, savepoint_key: InPath) -> Savepoint:
    return _savepoint(savepoint_key)


@api.get("/savepoints/{savepoint_key}/operators", response=list[OperatorInside])
def operators_in_savepoint(request: HttpRequest, savepoint_key: InPath) -> list[OperatorInside]:
    """Its operators, according to its manifest."""
    return savepoint_queries.operators_in(_savepoint(savepoint_key).path)


@api.get("/savepoints/{savepoint_key}/rows", response=RowsPage)
def rows_in_savepoint(
    request: HttpRequest,
    *,
    savepoint_key: InPath,
    uid: Text,
    state: Text,
    column: Text = "",
    value: Text = "",
    part: Count = 0,
    row: Count = 0,
) -> RowsPage:
    """Some rows of one state, from the place that the previous page gave as `next`."""
    looked = savepoint_queries.Looked(uid, state, column, value, part, row)
    return savepoint_queries.rows_in(_savepoint(savepoint_key).path, looked)


@api.get("/savepoints/{savepoint_key}/shelf-life", response=ShelfLife)
def shelf_life(request: HttpRequest, savepoint_key: InPath) -> ShelfLife:
    """How long it can be restored, as far as its sources and sinks know now."""
    return savepoint_queries.shelf_life_of(_savepoint(savepoint_key))


@api.get("/savepoints/{savepoint_key}/comparison", response=Comparison)
def comparison_of_savepoints(
    request: HttpRequest, savepoint_key: InPath, since: Text
) -> Comparison:
    """The changes since another savepoint, as far as a worker has compared them."""
    found = comparisons.comparison_of(_savepoint(since).path, _savepoint(savepoint_key).path)
    return known(found, f"comparison of {savepoint_key!r} with {since!r}; ask for one")


@api.post("/savepoints/{savepoint_key}/verification", response={ASKED: Savepoint})
def verify_savepoint(request: Entered, savepoint_key: InPath) -> Status[Savepoint]:
    """Have every byte of it read again; `reading` in the answer gives the progress."""
    point_services.begin_inspection(_savepoint(savepoint_key).path)
    return Status(ASKED, _savepoint(savepoint_key))


@api.post("/savepoints/{savepoint_key}/comparison", response={ASKED: Comparison})
def compare_savepoints(
    request: Entered, savepoint_key: InPath, asked: shapes.AskingToCompare
) -> Status[Comparison]:
    """Have it compared with another savepoint, from the other one to this one."""
    left, right = _savepoint(asked.since).path, _savepoint(savepoint_key).path
    comparisons.ask(left, right, request.auth.name)
    found = comparisons.comparison_of(left, right)
    if found is None:
        raise InvariantViolated("a comparison that was asked for is found")
    return Status(ASKED, found)


def _savepoint(key: str) -> Savepoint:
    return known(savepoint_queries.savepoint(key), f"savepoint {key!r}")
