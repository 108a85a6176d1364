"""Storage of the hashmap backend: tables of numpy columns and batch lists, in memory."""
