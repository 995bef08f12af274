"""Process 1 of a pod: starts the ranks, watches them, and ends them. Loads no torch."""
