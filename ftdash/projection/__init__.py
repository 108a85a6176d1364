"""The projection: folds the journals of runs into rows."""
