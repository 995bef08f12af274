"""Checkpoints: saves, stores and restores the complete state of a training; knows neither Trainer nor ranks."""
