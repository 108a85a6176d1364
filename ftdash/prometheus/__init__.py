"""GET /metrics: the rows' values under the names of Flink's Prometheus reporter and our own."""
