"""From what a function leaves to the model of a run in the store."""
