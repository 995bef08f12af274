"""Publishing: makes the model of a run, in the store, from the files and results of its function."""
