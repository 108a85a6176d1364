"""Pages of watched Flink clusters."""
