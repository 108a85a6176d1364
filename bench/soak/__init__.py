"""The soak: pipelines under faults for hours; it checks their output and their use of resources."""
