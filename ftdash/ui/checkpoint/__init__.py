"""The page of one checkpoint: operators, subtasks, timeline, and a comparison with another one."""
