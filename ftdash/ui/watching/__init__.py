"""Pages of watched Structured Streaming queries."""
