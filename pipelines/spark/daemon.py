"""The process from which Spark forks Python workers; it has loaded everything that a slot imports.

Importing takes most of a second and a fork takes milliseconds, so a slot of a new attempt starts at
once. `spark.python.daemon.module` names this module. It only loads modules: all slots would share a
thread or connection that it opened.
"""

from contextlib import suppress
from importlib import import_module

from pyspark import daemon

from pipelines.domain.errors import Rejected
from pipelines.flows.finding import declared_flows, find_flow

PRELOADED = ("pipelines.runtime.slot.slot", "pyspark.worker")
OPTIONAL = "pipelines.storage.object_store"  # slots import it once a location needs it

if __name__ == "__main__":
    for module in PRELOADED:
        import_module(module)
    with suppress(ImportError):  # its client library is an optional extra
        import_module(OPTIONAL)
    for name in declared_flows():
        with suppress(Rejected):  # a slot that needs the flow says why it cannot be imported
            find_flow(name)
    daemon.manager()
