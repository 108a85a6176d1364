"""The planner: the costs of an interval and a parallelism."""
