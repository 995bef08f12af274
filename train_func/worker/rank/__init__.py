"""The process of a rank, around the function: its source, signals, marks, and end."""
