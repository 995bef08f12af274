"""Makes the model of a run in the store of what its function leaves."""
