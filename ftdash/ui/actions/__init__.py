"""Actions: their table, the form of each, and the view that calls the services."""
