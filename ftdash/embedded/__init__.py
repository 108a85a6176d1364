"""Everything that a bare machine needs to run ftdash, and the processes of its installation."""
