"""`python -m nexmark parquet|csv|kafka WHERE`: writes the events of Nexmark."""

import argparse
from pathlib import Path

from pipelines.connectors import KafkaAddress

from nexmark.generator import EVENTS_PER_S, Model
from nexmark.writing import write_csv, write_kafka, write_parquet


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m nexmark", description=__doc__)
    parser.add_argument("form", choices=("parquet", "csv", "kafka"))
    parser.add_argument("where", help="a directory, or the addresses of Kafka's brokers")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=int, default=EVENTS_PER_S, help="events in a second")
    parser.add_argument("--files", type=int, default=4, help="files of each kind")
    given = parser.parse_args()
    model = Model(given.seed, given.per_s)
    if given.form == "kafka":
        write_kafka(KafkaAddress(given.where), model, events=given.events)
    else:
        write = write_parquet if given.form == "parquet" else write_csv
        write(Path(given.where), model, events=given.events, files=given.files)


if __name__ == "__main__":
    main()
