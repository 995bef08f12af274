"""Makes one self-contained module of a function in a notebook cell, or reports every reason why it cannot travel."""

from train_func.client.source.notes import notes
from train_func.client.source.pack import Source, locate, main_thread, pack

__all__ = ["Source", "locate", "main_thread", "notes", "pack"]
