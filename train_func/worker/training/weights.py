"""Weights: which ones a model has, told by a fingerprint, and those of rank 0 given to all ranks."""

import hashlib

import torch
from torch import nn

from train_func.worker.training import world


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all that is saved of the model: equal only where every value is the same bit for bit."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def agree(model: nn.Module) -> str:
    """Collective: the fingerprint of the weights, which are the same on every rank from now on.

    Buffers, such as the running means of a normalisation, differ where ranks see different rows: rank 0's count, as
    they are what is published. Other weights differ only when something has changed them on one rank.
    """
    for buffer in model.buffers():
        world.spread(buffer)
    found = world.gather(fingerprint(model))
    if len(set(found)) > 1:
        world.say("note: the ranks held different weights; all have those of rank 0 now, which are published")
        take_rank_zeros(model)
    return found[0]


def take_rank_zeros(model: nn.Module) -> None:
    """Collective: gives every rank the weights that rank 0 has."""
    for tensor in (*model.parameters(), *model.buffers()):
        world.spread(tensor)
