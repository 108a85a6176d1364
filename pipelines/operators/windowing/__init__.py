"""Windows and sessions of event time: which rows enter them, and what they emit."""
