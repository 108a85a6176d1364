"""Game days: faults on purpose in pipelines that allow them, measured, proven and scored."""
