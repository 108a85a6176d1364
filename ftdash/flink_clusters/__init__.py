"""Flink clusters that are watched: what they are asked, what is kept of it, what is triggered."""
