"""How long rows are kept, and how many there ever were of the deleted ones."""
