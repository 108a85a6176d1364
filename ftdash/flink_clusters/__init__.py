"""Watches Flink clusters: asks them, keeps their answers, and triggers actions on their jobs."""
