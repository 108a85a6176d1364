"""Orders of a shop: in euros, per country and product, with alarms for fraud."""

__version__ = "1.0"
