"""The pod: its supervisor, its ranks, and how each of them ends."""
