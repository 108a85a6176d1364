"""The command line: manage.py pipeline, and the benchmarks."""
