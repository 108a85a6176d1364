"""The process from which Spark forks Python workers; it has loaded everything that a slot imports.

Importing takes most of a second and a fork takes milliseconds, so a slot of a new attempt starts at
once. `spark.python.daemon.module` names this module. It only loads modules: all slots would share a
thread or connection that it opened. Of the declared pipelines it loads the one that the run names:
another one may import clients of systems that this run does not need.
"""

import os
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

from pipelines.domain.errors import Rejected
from pipelines.flows.finding import declared_flows, find_flow

PIPELINE = "FTDASH_PIPELINE_OF_RUN"
"""The variable with the name of the pipeline, which the driver sets."""

PRELOADED = ("pipelines.runtime.slot.slot", "pyspark.worker", "pandas", "pyarrow.acero")
"""pyarrow imports pandas as soon as it converts a list, and `acero` evaluates filters. Otherwise
each slot would import both for itself, which takes most of a second."""

OPTIONAL = "pipelines.storage.object_store"  # slots import it once a location needs it

if __name__ == "__main__":
    for module in PRELOADED:
        import_module(module)
    with suppress(ImportError):  # its client library is an optional extra
        import_module(OPTIONAL)
    name = os.environ.get(PIPELINE, "")
    if name in declared_flows():
        with suppress(Rejected):  # a slot says why it cannot be imported
            find_flow(name)
    daemon.manager()
