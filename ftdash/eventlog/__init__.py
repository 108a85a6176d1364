"""Events and people's actions in one list, read from the rows of everything that keeps a record."""
