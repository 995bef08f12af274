"""From a function in a notebook cell to one self-contained module, or to every reason why it cannot travel."""

from train_func.client.source.pack import Source, locate, locate_main, pack

__all__ = ["Source", "locate", "locate_main", "pack"]
