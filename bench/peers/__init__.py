"""The same work on other systems: a program for each, and the code that runs them."""
