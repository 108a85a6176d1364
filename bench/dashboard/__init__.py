"""What the pages cost that people watch, and what it costs to be watched."""
