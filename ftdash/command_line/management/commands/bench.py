"""`manage.py bench NAME`: run one benchmark program and pass its output through.

The programs live in `bench/` and know the engine; this command only finds them.
"""

from argparse import REMAINDER

from django.core.management.base import CommandParser

from ftdash.installed_command import QuickCommand, run_program

GROUPS = {  # a folder of `bench/` -> its programs, and what each of them asks
    "speed": {
        "pv": "a keyed count, exactly once, against the machine's limit",
        "latency": "from when a record happens to committed output, at half load",
        "small-batches": "rows a second on one core, at 1 to 8,192 rows a batch",
    },
    "nexmark": {
        "nexmark": "every query of Nexmark: speed beside Flink SQL, answers, and kill -9",
    },
    "ends": {
        "ends": "Kafka, PostgreSQL and Redis, exactly once, against bare loops of their clients",
    },
    "checkpoints": {
        "overhead": "what checkpoints every second cost",
        "pause": "how long a subtask stops for the synchronous part of a snapshot",
        "incremental": "bytes that a checkpoint uploads after 1 % of a million keys changed",
        "backpressure": "a checkpoint while every buffer before a slow reader is full",
        "coordinator": "acknowledgements a second, at 100 to 10,000 subtasks",
    },
    "recovery": {
        "recovery": "from kill -9 of a slot to running, and to committed output",
        "restore": "10 GB of RocksDB and 2 GB of hashmap, against reading and digesting them",
        "state-memory": "memory that a snapshot and a restore of 1 GiB of state need",
    },
    "dashboard": {
        "dashboard": "every page over a history of 10,000 checkpoints, signed in",
        "pages": "size and time of pages at parallelism 64, and with 500 pipelines",
        "viewers": "what 200 people who watch cost a pipeline's checkpoints",
        "watch": "Structured Streaming queries: reports a second, their page, the doctor, the"
        " listener",
    },
}
BENCHMARKS = {name: question for programs in GROUPS.values() for name, question in programs.items()}


class Command(QuickCommand):
    help = "Run a benchmark; its last line is one JSON object. " + "; ".join(
        f"{name}: {question}" for name, question in BENCHMARKS.items()
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(BENCHMARKS))
        parser.add_argument("--json", action="store_true", help="accepted; the output is JSON")
        parser.add_argument("options", nargs=REMAINDER, help="options of the benchmark")

    def handle(self, *args: object, **options: object) -> None:
        name, given = str(options["name"]), options["options"]
        rest = [str(option) for option in given] if isinstance(given, list) else []
        run_program(module_of(name), rest)


def module_of(name: str) -> str:
    group = next(group for group, programs in GROUPS.items() if name in programs)
    return f"bench.{group}.{name.replace('-', '_')}"
