"""Redis: its streams as a source, its hashes as a sink."""
