"""Benchmarks: programs that state a question and print one JSON object as their last line."""
