"""The shell that carries out what the machines decide."""
