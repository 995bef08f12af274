"""The worker halves of tasks: each does what is special to one kind of training."""
