"""The connections to the slots of an attempt, and what the slots report."""
