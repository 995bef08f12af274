"""Checkpoints: the complete state of a training, taken, kept and found again; knows neither Trainer nor ranks."""
