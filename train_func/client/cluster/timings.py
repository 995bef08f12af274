"""How long what is asked of a cluster may take, and the pauses between questions, in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Of one connection; a test passes shorter ones."""

    answer: float = 10.0
    """Between two packets of an answer."""
    busy: float = 60.0
    """Longest wait of one request for a busy server."""
    credentials: float = 20.0
    """For a credential plugin; after that its answer is taken when it comes."""
    credentials_pause: float = 30.0
    """At least, between two readings of credentials: a plugin may ask a login server, or a person."""
    login: float = 180.0
    """After which a plugin is ended that still waits for a person: the next reading asks anew."""
    first_listing: float = 15.0
    """For the first listing of a job that is followed, beside what a busy server asks for."""
    watch: int = 300
    """After which the server ends a watch, and the next one begins."""
    watch_pause: float = 0.25
    """Before a watch begins anew; it doubles up to ``longest_watch_pause``."""
    longest_watch_pause: float = 10.0
    silence: float = 90.0
    """Without a byte, after which a watch or a followed log counts as dead."""
    whole_log: float = 8.0
    """The same for a log that is there as a whole."""
    outage: float = 5.0
    """Without news, after which that is told."""
    idle: float = 30.0
    """After which an observer ends that has not been asked."""
    late_pods: float = 60.0
    """Longest that pods of a job that has finished are still followed."""
    late_logs: float = 70.0
    """The same for those whose readers hang in a request."""
