"""The guarantee lab: runs one input and one schedule of faults under every mode, and compares."""
