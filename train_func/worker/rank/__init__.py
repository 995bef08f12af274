"""What runs in the process of a rank, around the function: its source, signals, marks, and how it ends."""
