"""Files and directories of a local disk that appear whole, and stay when the power goes."""
