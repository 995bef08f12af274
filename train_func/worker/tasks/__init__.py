"""The worker halves of tasks: what is done differently for each kind of training."""
