"""Makes one self-contained module of a function in a notebook cell, or reports every reason why it cannot travel."""

from train_func.client.source.pack import Source, locate, locate_main, pack
from train_func.client.source.refusals import unpublished_note

__all__ = ["Source", "locate", "locate_main", "pack", "unpublished_note"]
