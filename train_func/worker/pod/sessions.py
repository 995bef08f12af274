"""Whether this process has opened a Session, and whether one has published: how its rank ends depends on it."""

from dataclasses import dataclass


@dataclass
class Sessions:
    """Of one process."""

    opened: bool = False
    published: bool = False


here = Sessions()
