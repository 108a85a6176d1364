"""The cost of the pages that people watch, and the cost of watching queries."""
