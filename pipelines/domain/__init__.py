"""The nouns of the engine. Imports no other package of ours."""
