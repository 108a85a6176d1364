"""GET /metrics: what the rows say, in the words of Flink's Prometheus reporter and in our own."""
