"""What happened and what people did, in one list: read from the rows of all that keep a record."""
