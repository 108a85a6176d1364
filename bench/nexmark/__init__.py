"""The queries of Nexmark: their speed, their answers, and both under `kill -9`."""
