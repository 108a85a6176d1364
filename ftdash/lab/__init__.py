"""The guarantee lab for people of an installation: requests, execution, results."""
