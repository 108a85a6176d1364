"""Every guarantee as a pure machine: no clock, no I/O, no thread, no randomness."""
