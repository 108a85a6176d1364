"""How fast records pass: the keyed count and the limit of the machine, latency, small batches."""
