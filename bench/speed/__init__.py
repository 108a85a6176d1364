"""The speed of records: the keyed count and the machine's limit, latency, small batches."""
