"""What a bare machine lacks to run ftdash, and the processes of a one-machine installation."""
