"""The metrics page of a pipeline: its operators, and which of them is the bottleneck."""
