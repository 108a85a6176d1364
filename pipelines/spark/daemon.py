"""The process that Spark forks Python workers from, with everything a slot imports loaded.

Importing takes most of a second, a fork takes milliseconds; so a slot of a new attempt is up at
once. Named by `spark.python.daemon.module`. Loads modules only: every slot would share a thread or
connection that it opened.
"""

from importlib import import_module

from pyspark import daemon

from pipelines.flows.registry import FLOWS

PRELOADED = ("pipelines.runtime.slot.slot", "pyspark.worker", *FLOWS.values())

if __name__ == "__main__":
    for module in PRELOADED:
        import_module(module)
    daemon.manager()
