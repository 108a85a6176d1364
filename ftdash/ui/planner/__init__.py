"""The planner: what an interval and a parallelism would cost."""
