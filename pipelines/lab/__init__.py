"""The guarantee lab: one input and one schedule of faults under every mode, and what came out."""
