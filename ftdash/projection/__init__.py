"""The projection: journals of runs are folded into rows."""
