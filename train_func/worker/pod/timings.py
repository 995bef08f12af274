"""How long a worker waits for its ranks, its peers and its store, and how often it looks."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The timings of one worker, in seconds; a test passes shorter ones."""

    look: float = 0.1
    """Between two looks at the ranks, at their supervisor's work and at the rendezvous."""
    patience: float = 2.0
    """For the root of a failure to show itself, and for the ranks to end when asked to."""
    late: float = 2.0
    """By which the end of the ranks may be noticed later than it was due."""
    join: float = 600.0
    """For the group to form, where the job does not say; torch's own default."""
    retry: float = 0.3
    """Between two tries to reach worker 0."""
    pause: float = 5.0
    """Before the next attempt in the same pods when two have made no progress; doubled after each further one,
    up to half of ``again``: a worker that could not count them waits already."""
    again: float = 60.0
    """For all workers of a group to be ready for another attempt in the same pods."""
    tell: float = 15.0
    """Between two lines that say what is waited for."""
    superseded: float = 10.0
    """For a record that another client has put in the place of the job's own to be put back, where that was slower."""
    store: float = 60.0
    """Longest wait for a store that is away, before the training."""
    store_pause: float = 3.0
    """Between two tries."""
    watch: float = 3.0
    """Between two looks whether the job is over, while the group has not formed."""
    record: float = 15.0
    """Longest wait of a worker's end for the store."""
    unformed: float = 3.0
    """The same when no group was formed, and little is to be told."""
    shortest: float = 0.5
    """For each question to the store, even when that time is up."""
    root: float = 3.0
    """Longest wait of a worker that lost its peer for the reason."""
    linger: float = 5.0
    """Longest that the host of the rendezvous stays for those who still read the reason."""
