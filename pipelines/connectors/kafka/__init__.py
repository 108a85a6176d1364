"""Topics of Apache Kafka: a source by assignment, and two sinks that are exactly once."""
