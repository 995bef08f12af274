"""Process 1 of a pod: it starts the ranks, watches them, and brings their end about. Loads no torch."""
