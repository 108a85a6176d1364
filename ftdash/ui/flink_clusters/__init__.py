"""Pages of Flink clusters that are watched."""
