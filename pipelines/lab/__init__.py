"""The guarantee lab: runs one input and one schedule of faults in every mode, and compares them."""
