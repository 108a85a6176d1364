"""The soak: pipelines under faults for hours, with a checker of their output and slopes of use."""
