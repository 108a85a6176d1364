"""Runs a pipeline in this process, without Spark and without a control plane.

    result = run_local(pipeline)
    result.table("totals").to_pandas()

The job master, the journal, the checkpoints, the operators and the sinks are the real ones. One
thread plays the driver and all slots, in turns.
"""

from pipelines.local.running import LocalResult, RunFailed, run_local

__all__ = ["LocalResult", "RunFailed", "run_local"]
