"""What a bare machine lacks, and the processes of a one-machine installation."""
