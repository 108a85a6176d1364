"""Real driver and slot processes without Spark, to show in a second what kill -9 does."""
