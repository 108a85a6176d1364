"""The nouns of the engine. Imports nothing of ours."""
