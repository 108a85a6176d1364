"""Real driver and slot processes without Spark: what kill -9 does, in a second."""
