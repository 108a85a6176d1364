"""The same work on other systems: a program for each, and what runs them."""
