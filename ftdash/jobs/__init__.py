"""Pipelines, their runs, the requests of people, failures and recoveries; the driver's life."""
