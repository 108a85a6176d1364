"""The rules of ARCHITECTURE.md that a machine can check. A failure names file and rule."""

import ast
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from graphlib import TopologicalSorter
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

from pipelines import connectors, local, stream, testing
from pipelines.connectors import contract, in_process
from pipelines.connectors.contract import Sink
from pipelines.domain.commands import AnyCommand, DriverCommand
from pipelines.domain.settings.parsing import DEFINITIONS
from pipelines.flows.finding import installed_flows

ROOT = Path(__file__).parents[1]
FILES_OF_A_TRIP_MAX = 35
DOMAIN = {"pipelines.domain"}
MAY_IMPORT = {  # package -> our packages that it may import, apart from itself
    "pipelines.domain": set(),
    "pipelines.protocol": DOMAIN,
    "pipelines.state": DOMAIN | {"pipelines.protocol"},
    "pipelines.disk": set(),
    "pipelines.storage": DOMAIN | {"pipelines.disk"},
    "pipelines.structured": DOMAIN | {"pipelines.disk", "pipelines.storage"},
    "pipelines.packages": DOMAIN | {"pipelines.disk"},
    "pipelines.channels": DOMAIN,
    "pipelines.connectors": DOMAIN | {"pipelines.disk"},
    "pipelines.bus": DOMAIN | {"pipelines.disk"},
    "pipelines.operators": DOMAIN | {"pipelines.state"},
    "pipelines.stream": DOMAIN | {"pipelines.state", "pipelines.operators", "pipelines.connectors"},
    "pipelines.flows": DOMAIN
    | {f"pipelines.{p}" for p in ("stream", "operators", "connectors", "packages")},
    "pipelines.runtime": DOMAIN
    | {f"pipelines.{p}" for p in ("protocol", "state", "storage", "channels", "operators")}
    | {f"pipelines.{p}" for p in ("connectors", "bus", "stream", "flows", "disk", "points")}
    | {"pipelines.packages"},
    "pipelines.testing": DOMAIN
    | {f"pipelines.{p}" for p in ("local", "stream", "connectors", "operators", "state")},
    "pipelines.local": DOMAIN
    | {f"pipelines.{p}" for p in ("runtime", "bus", "channels", "connectors", "storage")}
    | {f"pipelines.{p}" for p in ("stream", "protocol", "flows", "disk")},
    "pipelines.points": DOMAIN
    | {f"pipelines.{p}" for p in ("protocol", "state", "storage", "connectors", "bus")}
    | {f"pipelines.{p}" for p in ("operators", "stream", "flows", "packages")},
    "pipelines.audit": DOMAIN
    | {f"pipelines.{p}" for p in ("bus", "state", "connectors", "flows", "stream", "packages")},
    "pipelines.lab": DOMAIN
    | {f"pipelines.{p}" for p in ("runtime", "bus", "disk", "connectors", "operators")}
    | {"pipelines.stream", "pipelines.flows"},
    "pipelines.spark": DOMAIN
    | {f"pipelines.{p}" for p in ("runtime", "points", "bus", "flows", "storage")}
    | {f"pipelines.{p}" for p in ("stream", "connectors", "packages", "structured")},
}
FROM_FTDASH = {
    f"pipelines.{package}"
    for package in (
        *("domain", "disk", "bus", "flows", "packages"),
        *("points", "storage", "audit", "lab", "local", "structured"),
    )
}
DASHBOARD = [  # each may import those before it
    *("installed_command", "formats", "times", "among", "telemetry", "logs"),
    *("broker", "celery", "errands", "postgresql", "settings"),
    "jobs",  # the rows of pipelines, runs and requests
    *("accounts", "django_hooks", "history", "checkpoints", "metrics"),
    *("requests", "runs", "points", "audits", "incidents", "projection", "supervision"),
    *("upgrades", "lab", "gameday", "flink_clusters", "watching", "alerts", "eventlog"),
    *("retention", "tasks"),
    *("api", "prometheus", "ui", "documentation", "embedded", "command_line"),
    "deployment",
    *("urls", "asgi", "__init__", "__main__"),
]
SHOWN = {
    "ftdash.documentation": {"pipelines.protocol"},
    "ftdash.supervision": {"pipelines.protocol"},
}
"""The documentation draws the protocol machines' tables, and supervision hosts one machine."""

VERSION = "pipelines"
"""The package itself contains the version and nothing else."""

KINDS = {f"pipelines.connectors.{kind}." for kind in ("files", "kafka", "postgres", "redis", "sql")}
NOT_WITHIN = {  # directory -> modules not to import: in another process, or above the directory
    "pipelines.runtime.master": ("pipelines.runtime.slot.", "pipelines.runtime.subtask."),
    "pipelines.runtime.slot": ("pipelines.runtime.master.",),
    "pipelines.runtime.subtask": ("pipelines.runtime.master.", "pipelines.runtime.slot."),
    **{
        f"pipelines.runtime.subtask.{part}": ("pipelines.runtime.subtask.subtask.",)
        for part in ("acking", "chains", "snapshots", "sources")
    },
    "pipelines.connectors": tuple(KINDS),
    **{kind[:-1]: tuple(KINDS - {kind}) for kind in KINDS},
    "pipelines.connectors.postgres": tuple(
        KINDS - {"pipelines.connectors.postgres.", "pipelines.connectors.sql."}
    ),
}
FACADE = Path("pipelines/connectors/__init__.py")
"""Names the connectors of all kinds, and imports each when it is used."""

AUTHORS_DOORS = (
    *("pipelines.stream", "pipelines.connectors", "pipelines.testing", "pipelines.local"),
    "pipelines.connectors.contract",
)
"""The modules that the author of a pipeline or of a connector imports."""

BEHIND_THE_DOORS = tuple(
    f"pipelines.{each}."
    for each in ("stream", "connectors", "operators", "state", "testing", "local")
)
MIRRORS = (
    *("tests/contracts", "tests/unit/connectors", "tests/unit/operators"),
    *("tests/unit/state", "tests/unit/stream"),
)
"""These tests cover what is behind the doors, module by module, so they import it directly. All
other tests build pipelines as an author does."""

PURE = ("pipelines.domain", "pipelines.protocol")
NOT_IN_PURE = {"time", "random", "threading", "asyncio", "os", "uuid", "redis", "pyspark"}
SAYS_PURE = re.compile(r"(^|\s)Pure[.:]")
NOT_IN_PURE_PAGES = ("django.db", "django.http", "django.shortcuts")
"""A pure module may use enums and answers of other modules, which are values. Rows need these
imports."""
RUNS_WHAT_IT_READS = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
NOT_IN_ENGINE = {"django", "celery", "ftdash"}
DOORS = ("ftdash.ui", "ftdash.api")
"""Pages and interfaces read through shared queries and do not access tables themselves."""

COMMAND_PLACES = (  # the modules that a new command touches
    "pipelines.domain.commands",  # its type, with the texts that people read about it
    "pipelines.runtime.master.requests",  # its handler in the driver
    "ftdash.ui.actions",  # its form
)
COMMAND_DOORS = (  # the modules that may offer it too
    "ftdash.api.own.actions",
    "ftdash.api.flink.action_routes",
    "ftdash.command_line",
)
KNOW_A_COMMAND = {  # module -> the commands that it treats differently from others
    # Checks their values, or records what follows from them.
    "ftdash.requests.services": {"AllowFaults", "Cancel", "ChangeSettings", "KillSlot"}
    | {"RetryNow", "StartPipeline", "UndoStart"},
    "ftdash.points.services.disposal": {"DisposeSavepoint", "LabelSavepoint"},
    "ftdash.points.services.restore": {"DisposeSavepoint", "RestorePipeline"},
    "ftdash.supervision.drivers": {"DisposeSavepoint"},  # a worker carries it out
    "ftdash.upgrades.services": {"Cancel", "StopWithSavepoint", "UpgradePipeline"},  # its steps
    "ftdash.projection.run_fold": {"Cancel", "UndoStart"},  # they succeed when their run ends
    "ftdash.supervision.launcher": {"UndoStart"},  # who asked for a run that only puts back
    "ftdash.checkpoints.queries.statistics": {"StopWithSavepoint"},  # its savepoint is the last
    "ftdash.eventlog.queries": {"LabelSavepoint"},  # the log shows the name that it gives
    "ftdash.gameday.injection": {"KillDriver", "KillSlot", "SlowSlot"},  # faults of a game day
    "ftdash.gameday.queries": {"KillSlot"},  # a game day has the same requirements as a kill
    "ftdash.gameday.services": {"KillSlot"},
    "ftdash.runs.queries.pipelines": {"ChangeSettings"},  # charts mark the time of the change
    "ftdash.ui.gameday.page": {"KillSlot"},
    "ftdash.ui.pipelines.page": {"RestorePipeline"},  # pages that offer a restore at each point
    "ftdash.ui.recovery.page": {"RestorePipeline"},
    "ftdash.ui.savepoints.page": {"RestorePipeline", "TakeSavepoint"},
    "ftdash.incidents.causes": {  # the suggested next steps
        *("Cancel", "ChangeSettings", "RestorePipeline", "RetryNow", "StopWithSavepoint"),
        *("TriggerCheckpoint", "UpgradePipeline"),
    },
    "ftdash.embedded.checked": {"StopWithSavepoint"},  # the demonstration ends a pipeline
    "pipelines.lab.lab": {"Cancel"},  # the lab ends a trial
    "pipelines.local.running": {"StopWithSavepoint"},  # `stop_after`
}
READERS = {  # module -> why it reads rows although it is neither `queries` nor `services`
    "ftdash.deployment.doctor": "the clock of the database server",
    "ftdash.jobs.damage": "the runs that keep a point are told of its damage",
    "ftdash.prometheus.observed": "what a scrape reads, in one place",
    "ftdash.supervision.drivers": "the requests that wait for a driver",
    "ftdash.supervision.launcher": "what a driver is started with",
    "ftdash.upgrades.packages": "what names a package, before it is deleted",
}
WRITERS = {  # module -> why it writes rows although it is not `services`
    "ftdash.accounts.authentication": "lets a request in by its token, and notes that use",
    "ftdash.accounts.company": "makes the account of a person of the company at the first sign-in",
    "ftdash.accounts.second_factor": "requires a second factor, and resets one",
    "ftdash.accounts.shared_cache": "keeps what all web servers share, for Django's cache",
    "ftdash.alerts.delivery": "how far each delivery has come",
    "ftdash.alerts.evaluation": "alerts that fire and clear",
    "ftdash.checkpoints.projector": "folds journals",
    "ftdash.deployment.starting": "notes which secret key an installation has",
    "ftdash.embedded.demo": "makes the people of a new installation",
    "ftdash.gameday.injection": "notes a process before it is hit, so that it is let go",
    "ftdash.history.limits": "how long history is kept, and what was counted before",
    "ftdash.metrics.projector": "folds journals",
    "ftdash.projection.incident_fold": "folds journals",
    "ftdash.projection.projector": "folds journals",
    "ftdash.projection.run_fold": "folds journals",
    "ftdash.requests.storing": "the part that all services share to store a request",
    "ftdash.retention.pruning": "deletes what is older than its limit",
    "ftdash.supervision.drivers": "starts, watches and ends drivers",
}
WRITING = {
    *("save", "create", "delete", "bulk_create", "bulk_update"),
    *("get_or_create", "update_or_create", "select_for_update"),
}
MANAGERS = ("objects", "_default_manager", "_base_manager")
NO_TABLES = ("models.TextChoices", "models.IntegerChoices", "StrEnum")
TABLES = {
    node.name
    for path in ROOT.glob("ftdash/*/models.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef) and ast.unparse(node.bases[0]) not in NO_TABLES
}
POSITIONAL_MAX = 6
"""A caller has to name the arguments of a function that takes more."""

FILES = sorted(p for top in ("pipelines", "ftdash") for p in ROOT.glob(f"{top}/**/*.py"))
TEST_FILES = sorted(ROOT.glob("tests/**/*.py"))
TEST_MODULES = [path for path in TEST_FILES if path.name.startswith("test_")]
FAILS_BY_ITSELF = ("pytest.raises", "pytest.warns", "pytest.fail", "expect", "assert_exactly_once")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_keeps_the_rules(path: Path) -> None:
    relative = path.relative_to(ROOT)
    if "migrations" in relative.parts:
        return
    facts = facts_of(path)
    package = ".".join(relative.with_suffix("").parts[:2])

    assert facts.docstring or not path.stat().st_size, "a module opens with what it is for"
    for name in facts.imports:
        check_import(package, name)
        check_purity(facts.docstring, name)
        if relative != FACADE:
            check_within(".".join(relative.parent.parts), name)
    for node in nodes_of(path):
        assert not isinstance(node, ast.Assert), "use check(): -O strips assert"
        check_names_arguments(node)
        if package in DOORS:
            check_asks_no_table(node)


def test_our_pipelines_import_only_what_any_author_may() -> None:
    modules = {each.partition(":")[0] for each in installed_flows().values()}
    paths = [path for path in FILES if module_of(path) in modules]

    private = {
        (path.name, module)
        for path in paths
        for module, *_ in facts_of(path).taken
        if module.startswith("pipelines.") and module not in AUTHORS_DOORS
        if not f"{module}.".startswith("pipelines.flows.")
    }
    assert len(paths) == len(modules) >= 3
    assert private == set()


@pytest.mark.parametrize("example", ["shop", "nexmark"])
def test_an_example_project_imports_nothing_private(example: str) -> None:
    paths = list((ROOT / "examples" / example).rglob("*.py"))
    modules = {
        (str(path.relative_to(ROOT)), module) for path in paths for module in facts_of(path).imports
    }
    ours = {each for each in modules if re.match("pipelines|ftdash", each[1])}

    assert len(ours) > 8
    assert {(path, module) for path, module in ours if module not in AUTHORS_DOORS} == set()


def test_lab_benchmarks_and_tests_use_the_authors_doors_where_they_can() -> None:
    places = ("pipelines/lab", "ftdash/lab", "bench")
    tests = [path for path in TEST_FILES if not str(path.relative_to(ROOT)).startswith(MIRRORS)]
    behind = [
        (str(path.relative_to(ROOT)), f"{module}.{name}")
        for path in [*chain(*(ROOT.glob(f"{place}/**/*.py") for place in places)), *tests]
        for module, name, _ in facts_of(path).taken
        if is_behind_a_door(module, name)
    ]

    assert behind == []


def test_an_import_from_behind_a_door_is_recognised() -> None:
    """The object decides: two names that look alike are not enough."""
    assert is_behind_a_door("pipelines.connectors.files.sink", "ExactlyOnceFiles")
    assert is_behind_a_door("pipelines.stream.declaration", "Flow")
    assert is_behind_a_door("pipelines.testing.exactly_once", "assert_exactly_once")
    assert is_behind_a_door("pipelines.connectors.sink", "SinkContext")
    assert not is_behind_a_door("pipelines.connectors", "ExactlyOnceFiles")
    assert not is_behind_a_door("pipelines.connectors.contract", "SinkContext")
    assert not is_behind_a_door("pipelines.connectors.kafka.sink", "KafkaSink")


def is_behind_a_door(module: str, name: str) -> bool:
    if module in AUTHORS_DOORS or not module.startswith(BEHIND_THE_DOORS):
        return False
    taken = getattr(import_module(module), name, None)
    doors = (stream, connectors, testing, local, contract)
    return any(name in door.__all__ and getattr(door, name) is taken for door in doors)


def test_modules_of_the_dashboard_have_no_circular_imports() -> None:
    """Not even within a function: a module that needs that is in the wrong place."""
    paths = {module_of(path): path for path in FILES if path.is_relative_to(ROOT / "ftdash")}
    graph = {
        name: imported_modules(facts_of(path)) & paths.keys() - {name}
        for name, path in paths.items()
    }

    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_only_queries_read_rows_and_only_services_write_them() -> None:
    """Every other module that reads or writes rows is in the two tables, with the reason."""
    reading, writing = set(), set()
    for path in FILES:
        name = module_of(path)
        if not name.startswith("ftdash.") or {"migrations", "models"} & set(name.split(".")):
            continue
        if facts_of(path).has_manager:
            reading.add(name)
            writing |= {name} if facts_of(path).has_write else set()

    elsewhere = {name for name in reading if not is_room(name, "queries", "services")}
    assert elsewhere == READERS.keys() | WRITERS.keys()
    assert {name for name in writing if not is_room(name, "services")} == WRITERS.keys()


def test_a_new_command_touches_its_type_its_handler_and_its_form() -> None:
    """Other modules treat all commands alike, or are in `KNOW_A_COMMAND` with the reason."""
    commands = {each.__name__ for each in get_args(AnyCommand)}
    told = {module_of(path): imported_from(path, "pipelines.domain.commands") for path in FILES}
    known = {module: names & commands for module, names in told.items() if names & commands}

    elsewhere = {
        module: names
        for module, names in known.items()
        if not module.startswith(COMMAND_PLACES + COMMAND_DOORS)
    }
    assert elsewhere == KNOW_A_COMMAND


def test_only_the_module_of_the_commands_names_their_kinds() -> None:
    """Rows and answers carry the kind; code uses the command, which knows its kind."""
    written = [
        module_of(path)
        for path in FILES
        if any(each.startswith("RequestKind.") for each in facts_of(path).about_requests)
    ]

    assert set(written) == {"pipelines.domain.commands"}


def test_only_the_module_that_logs_requests_stores_them() -> None:
    making = {"Request.of", "Request.objects.create", "Request.objects.bulk_create"}
    makers = {module_of(path) for path in FILES if making & facts_of(path).about_requests}

    assert makers == {"ftdash.requests.storing"}


def test_a_checkpoint_passes_few_files_from_the_button_to_its_row() -> None:
    """Every name is a different file; `test_documentation` looks for each."""
    document = (ROOT / "ARCHITECTURE.md").read_text()
    trip = document.split("## A checkpoint's trip, file by file")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", trip)

    assert len(set(files)) == len(files)
    assert f"These {len(files)} files" in trip
    assert len(files) <= FILES_OF_A_TRIP_MAX


WALKS = ("Add a setting", "Add a command with its button", "Add a sink")


@pytest.mark.parametrize("walk", WALKS)
def test_the_files_of_a_newcomers_walk_exist(walk: str) -> None:
    missing = [path for path in files_of_walk(walk) if not (ROOT / path).exists()]

    assert missing == []
    assert len(files_of_walk(walk)) >= 5


def test_every_setting_is_declared_in_the_files_of_its_walk() -> None:
    declared = "".join((ROOT / path).read_text() for path in files_of_walk(WALKS[0])[:4])

    assert [each.key for each in DEFINITIONS if f'"{each.key}"' not in declared] == []


def test_every_command_has_its_parts_in_the_files_of_its_walk() -> None:
    """Commands for a driver have a handler; the control plane carries out the others."""
    commands, desk, *offered = files_of_walk(WALKS[1])
    handled = imported_from(ROOT / desk, "pipelines.domain.commands")
    taken = ast.parse((ROOT / "ftdash/ui/actions/page.py").read_text())
    forms = {node.module for node in taken.body if isinstance(node, ast.ImportFrom)}

    assert {each.__module__ for each in get_args(AnyCommand)} == {"pipelines.domain.commands"}
    assert commands == "pipelines/domain/commands.py"
    assert {each.__name__ for each in get_args(DriverCommand)} <= handled
    assert {module_of(ROOT / path) for path in offered[:2]} <= forms


def test_every_sink_of_authors_is_in_the_files_of_its_walk() -> None:
    """Except the in-process sinks, which do not survive the death of their process."""
    targets = (ROOT / "tests/contracts/sink_targets.py").read_text()
    promised = {name for name in vars(Sink) if not name.startswith("_")}
    sinks = {
        name
        for name in connectors.__all__
        if promised <= set(dir(each := getattr(connectors, name)))
        if each.__module__ != in_process.__name__
    }

    assert len(sinks) >= 5
    assert {name for name in sinks if not re.search(rf"\b{name}\b", targets)} == set()


def test_no_module_of_the_tests_imports_a_test_module() -> None:
    """Importing a test module brings its fixtures, and pytest may collect its tests there."""
    taken = [
        (str(path.relative_to(ROOT)), name)
        for path in TEST_FILES
        for name in facts_of(path).imports
        if name.startswith("tests.") and ".test_" in name
    ]

    assert taken == [], "what others need of a module of tests goes elsewhere"


def test_every_test_asserts_something() -> None:
    """Directly or in a helper of the tests: a test that cannot fail proves nothing."""
    tests = [
        (path, name)
        for path in TEST_MODULES
        for name in facts_of(path).functions
        if name.startswith("test_")
    ]
    idle = [(path.name, name) for path, name in tests if not asserts(path, name, frozenset())]

    assert len(tests) > len(TEST_MODULES)
    assert idle == []


def files_of_walk(walk: str) -> list[str]:
    """Returns whole paths in the order of the list; a bare name lies beside the path before it."""
    text = (ROOT / "docs/how-to/develop.md").read_text()
    steps = text.split(f"### {walk}\n")[1].split("\n### ")[0].split("\n\n`tests/test_arch")[0]
    paths: list[str] = []
    for name in re.findall(r"`([a-z_/]+\.(?:py|md)|[a-z_/]+/)`", steps):
        folder = str(Path(paths[-1]).parent) if paths and "/" not in name else ""
        paths.append(name if "/" in name else f"{folder}/{name}")
    return paths


def check_purity(claims: str, name: str) -> None:
    """Checks the imports of a module that claims to be pure, in any package."""
    if SAYS_PURE.search(claims):
        assert name.split(".")[0] not in NOT_IN_PURE, f"it says it is pure: no {name}"
        assert not name.startswith(NOT_IN_PURE_PAGES), f"it says it is pure: no {name}"


def check_import(package: str, name: str) -> None:
    top, second = name.split(".")[0], ".".join(name.split(".")[:2])
    assert top not in RUNS_WHAT_IT_READS, "nothing stored is ever unpickled"
    if package.startswith("ftdash"):
        assert top != "pyspark", "web and workers never load Spark"
        check_direction(package, second)
        assert top != "pipelines" or second in {VERSION} | FROM_FTDASH | SHOWN.get(
            package, set()
        ), f"{package} may not import {second}"
        return
    assert top not in NOT_IN_ENGINE, f"the engine knows no {top}"
    assert top != "pyspark" or package == "pipelines.spark", "only pipelines.spark knows Spark"
    assert package not in PURE or top not in NOT_IN_PURE, f"{package} is pure: no {top}"
    if top == "pipelines" and second not in (package, VERSION) and package != "pipelines.__init__":
        assert second in MAY_IMPORT[package], f"{package} may not import {second}"


def check_direction(package: str, name: str) -> None:
    """Allows only imports of earlier packages in `DASHBOARD`, so that no two import each other."""
    here, there = package.removeprefix("ftdash."), name.removeprefix("ftdash.")
    assert here in DASHBOARD, f"{here} has no place in DASHBOARD"
    if name.startswith("ftdash.") and here != there:
        assert there in DASHBOARD[: DASHBOARD.index(here)], f"{package} may not import {name}"


def check_within(directory: str, name: str) -> None:
    forbidden = NOT_WITHIN.get(directory, ())
    assert not f"{name}.".startswith(forbidden), f"{directory} may not import {name}"


def check_asks_no_table(node: ast.AST) -> None:
    """Allows imports of kinds and states from a module of tables, but not of the tables."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ftdash."):
        tables = TABLES if str(node.module).endswith(".models") else {"models"}
        taken = tables & {each.name for each in node.names}
        assert not taken, f"{taken} is asked by queries beside {node.module}"
    is_manager = isinstance(node, ast.Attribute) and node.attr in MANAGERS
    assert not is_manager, f"{ast.unparse(node)} belongs into a query"


def check_names_arguments(node: ast.AST) -> None:
    if isinstance(node, Function):
        taken = [*node.args.posonlyargs, *node.args.args]
        count = len([each for each in taken if each.arg not in ("self", "cls")])
    elif isinstance(node, ast.ClassDef) and is_struct(node):
        count = len(positional_fields(node))
    else:
        return
    assert count <= POSITIONAL_MAX, f"{node.name} takes {count} arguments by position: name them"


def is_struct(node: ast.ClassDef) -> bool:
    made_by = [ast.unparse(each) for each in (*node.decorator_list, *node.bases, *node.keywords)]
    is_made = any(each.startswith(("dataclass", "msgspec.Struct")) for each in made_by)
    return is_made and not any("kw_only=True" in each for each in made_by)


def positional_fields(node: ast.ClassDef) -> list[str]:
    names = []
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            if ast.unparse(each.annotation) == "KW_ONLY":
                break
            text = ast.unparse(each)
            if not any(word in text for word in ("ClassVar", "init=False", "kw_only=True")):
                names.append(ast.unparse(each.target))
    return names


@dataclass(frozen=True, slots=True)
class Checks:
    """What a function calls, or passes on to what it calls; `fails` if it can fail by itself."""

    fails: bool
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules ask of each file."""

    docstring: str
    imports: tuple[str, ...]
    taken: tuple[tuple[str, str, str], ...]  # (module, name there, name here) of `from` imports
    about_requests: frozenset[str]  # such as `Request.objects.create`
    has_manager: bool
    has_write: bool
    functions: dict[str, Checks]  # of a module of the tests


@lru_cache(maxsize=1)
def nodes_of(path: Path) -> list[ast.AST]:
    """Keeps one file's only: the nodes of all files take half a gigabyte."""
    with no_garbage_collection():
        return list(ast.walk(ast.parse(path.read_text())))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A parser makes many objects and no garbage; looking for it takes longer than parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def facts_of(path: Path) -> Facts:
    """Reads each file once for all rules."""
    nodes = nodes_of(path)
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    is_test = path.is_relative_to(ROOT / "tests")
    functions = [node for node in nodes if isinstance(node, Function)] if is_test else []
    [module] = [node for node in nodes if isinstance(node, ast.Module)]
    return Facts(
        docstring=ast.get_docstring(module) or "",
        imports=tuple(imports(nodes)),
        taken=tuple(
            (node.module or "", each.name, each.asname or each.name)
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for each in node.names
        ),
        about_requests=frozenset(
            text for node in attributes if (text := dotted(node)).startswith("Request")
        ),
        has_manager=any(node.attr in MANAGERS for node in attributes),
        has_write=any(is_write(node) for node in nodes),
        functions={node.name: checks_of(node) for node in functions},
    )


def imports(nodes: list[ast.AST]) -> list[str]:
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "absolute imports only"
            assert node.module, "a module is imported from"
            names.append(node.module)
    return names


def imported_from(path: Path, module: str) -> set[str]:
    return {name for origin, name, _ in facts_of(path).taken if origin == module}


def dotted(node: ast.expr) -> str:
    """Returns `a.b.c` if the expression is just that, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Attribute):
        return ""
    before = dotted(node.value)
    return f"{before}.{node.attr}" if before else ""


def is_write(node: ast.AST) -> bool:
    """Counts `update` only with keyword arguments, because a dict's `update` takes a value."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    is_update = node.func.attr == "update" and bool(node.keywords)
    return is_update or node.func.attr in WRITING


def is_room(module: str, *rooms: str) -> bool:
    return bool(set(module.split(".")) & set(rooms))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(facts: Facts) -> set[str]:
    """Includes both `a` and `a.b` for `from a import b`, since only one of them may be a module."""
    return {*facts.imports, *(f"{module}.{name}" for module, name, _ in facts.taken)}


def asserts(path: Path, name: str, callers: frozenset[str]) -> bool:
    """Returns True if the function, or one that it calls, can fail."""
    if name in callers:
        return False
    checks = facts_of(path).functions[name]
    found = [each for called in checks.names if (each := place_of(path, called))]
    return checks.fails or any(asserts(*each, callers | {name}) for each in found)


def checks_of(function: Function) -> Checks:
    """Waiting counts as an assertion: it fails if the condition does not come true."""
    nodes = list(ast.walk(function))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = [last_of(call.func) for call in calls]
    handed_on = [each.id for call in calls for each in call.args if isinstance(each, ast.Name)]
    fails = (
        any(isinstance(node, ast.Assert) for node in nodes)
        or any(argument.arg.startswith("django_assert") for argument in function.args.args)
        or any(dotted(call.func) in FAILS_BY_ITSELF for call in calls)
        or any(
            isinstance(call.func, ast.Attribute) and call.func.attr.startswith("assert_")
            for call in calls
        )
        or any(name.startswith("wait_") for name in called)
    )
    return Checks(fails, frozenset([*called, *handed_on]))


def last_of(function: ast.expr) -> str:
    """Returns `c` for a call of `a.b.c`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def place_of(path: Path, name: str) -> tuple[Path, str] | None:
    """Finds a function that the module defines, or imports from another module of the tests."""
    if name in facts_of(path).functions:
        return path, name
    module, original = taken_from_tests(path).get(name, (path, name))
    is_there = module.exists() and original in facts_of(module).functions
    return (module, original) if is_there else None


@cache
def taken_from_tests(path: Path) -> dict[str, tuple[Path, str]]:
    """Returns {name here: (file of the module of tests, name there)}."""
    return {
        here: (ROOT / f"{module.replace('.', '/')}.py", name)
        for module, name, here in facts_of(path).taken
        if "tests" in module
    }
