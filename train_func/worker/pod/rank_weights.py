"""The weights that each rank has published, compared by their sketches: ranks that train apart are told of.

Told, and not refused: the model is trained, and a function may change it on rank 0 alone in the end, on purpose. Every
rank says what it has published in its outcome, so that none waits for one that publishes nothing. Loads no torch.
"""

import json
import math
from collections.abc import Mapping, Sequence

from train_func.counted import counted, listed
from train_func.worker.pod.peers import Peers
from train_func.worker.pod.rank_end import RankEnd

Sketches = Mapping[str, Sequence[float]]


def tell(peers: Peers, ends: Sequence[RankEnd]) -> None:
    """Says what the ranks of this worker have published."""
    found = {end.rank: end.outcome.weights for end in ends if end.outcome and end.outcome.weights}
    if found:
        peers.tell_of_ranks(json.dumps(found))


def notes(peers: Peers) -> list[str]:
    """What there is to be said of the weights of all ranks that have ended."""
    told = [json.loads(said) for said in peers.told_of_ranks()]
    return differing({int(rank): of for ranks in told for rank, of in ranks.items()})


def differing(weights: Mapping[int, Sketches]) -> list[str]:
    """A note where other ranks have published another model than rank 0; tensors that both have count."""
    zero = weights.get(0, {})
    apart = {rank: names for rank in sorted(weights) if (names := _apart(zero, weights[rank]))}
    if not apart:
        return []
    names = [name for name in zero if any(name in of for of in apart.values())]
    ranks = f"{'rank' if len(apart) == 1 else 'ranks'} {listed([*apart])}"
    note = (
        f"the ranks have not trained one model: the weights of {ranks} differ from those of rank 0, which are "
        f"published, in {counted(len(names), 'tensor')} of {len(zero)}, first in {names[0]!r}. Each rank trains on its "
        "own share of the rows: wrap the model before training, DistributedDataParallel(model), so that the ranks "
        "exchange their gradients, and train again; where rank 0 alone changes the model in the end, publish it there "
        "alone"
    )
    return [note]


def _apart(one: Sketches, other: Sketches) -> list[str]:
    """The tensors that differ by more than rounding."""
    found = []
    for name in other:
        if name in one and len(one[name]) == len(other[name]):
            distance = math.hypot(*map(_distance, one[name][1:], other[name][1:]))
            if distance and not distance <= max(one[name][0], other[name][0]):  # also when that is no number
                found.append(name)
    return found


def _distance(one: float, other: float) -> float:
    """Also of numbers that are not finite: a model that has diverged has done so on all ranks, or on some."""
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other)
    return 0.0 if repr(one) == repr(other) else math.inf
