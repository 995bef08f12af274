"""Which failpoints of a training are armed: those of its training and of its publication, as numbers of the seed.

The undisturbed training tells which points each rank passes, how often, and how often until it had trained. A drawn
point is ``{"point": ..., "rank": ..., "part": ..., "nth": ...}``; see ``trainings.begin_publication`` for ``part``.
"""

import random

TRAINING, PUBLICATION = "training", "publication"
OF_S3 = ("object ", "upload ", "part", "chunk received")


def points(seed, training, expected, how, *, is_of_s3=False):
    """The points of the first kill and, in half of the seeds, of a second one in the attempt that goes on.

    ``expected``: what the undisturbed training has passed; ``is_of_s3``: the first is one of those that only S3 has.
    """
    chance = random.Random(f"{training} {how} {seed}")
    drawn = [_first(seed, chance, expected, OF_S3 if is_of_s3 else ("",))]
    return [*drawn, _second(chance, expected["passed"][1])] if chance.random() < 0.5 else drawn


def pairs_of(expected, part, begins=("",)):
    """Of each rank the points that it passes in this part of the first attempt, each with how often."""
    found = []
    for passed, trained in zip(expected["passed"][0], expected["trained"], strict=True):
        times = trained if part == TRAINING else {name: of - trained.get(name, 0) for name, of in passed.items()}
        found.append({name: of for name, of in times.items() if of > 0 and name.startswith(begins)})
    return found


def _first(seed, chance, expected, begins):
    """Every fifth seed takes one of the publication; of those of the training, every third is one of rank 1. All of
    them have their turn, in an order that has nothing to do with their names."""
    part = PUBLICATION if seed % 5 == 4 else TRAINING
    of_ranks = pairs_of(expected, part, begins)
    turn, rank = seed // 5 if part == PUBLICATION else seed - seed // 5, 0
    if any(of_ranks[1:]):
        rank, turn = (1, turn // 3) if turn % 3 == 2 else (0, turn - turn // 3)
    names = sorted(of_ranks[rank])
    random.Random("the order of points").shuffle(names)
    point = names[turn % len(names)]
    return {"point": point, "rank": rank, "part": part, "nth": chance.randint(1, of_ranks[rank][point])}


def _second(chance, passed):
    """Of all points, ranks and times that the attempt which goes on passes; early ones more often."""
    point = chance.choice(sorted({name for of_rank in passed for name in of_rank}))
    rank = chance.choice([rank for rank, of_rank in enumerate(passed) if point in of_rank])
    return {"point": point, "rank": rank, "nth": chance.randint(1, chance.randint(1, passed[rank][point]))}
