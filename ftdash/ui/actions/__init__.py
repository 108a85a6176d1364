"""Acting: the table of actions, the form of each, and the view that asks the services."""
