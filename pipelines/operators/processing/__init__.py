"""Process functions and row functions: the classes that authors write, and their host."""
