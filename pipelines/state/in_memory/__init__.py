"""Where the hashmap backend keeps state: tables of numpy columns and batch lists, in memory."""
