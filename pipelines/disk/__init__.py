"""Files and directories of a local disk that appear whole and survive a loss of power."""
