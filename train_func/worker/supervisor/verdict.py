"""Makes one verdict of the ends of a worker's ranks: separates the first failure from those that followed."""

import signal
from collections.abc import Sequence
from dataclasses import replace

from train_func.errors import Cause
from train_func.wire import exits
from train_func.wire.records import Verdict
from train_func.worker.rank.end import RankEnd


def worker_verdict(ends: Sequence[RankEnd], *, worker: int, out_of_memory: bool) -> Verdict | None:
    """Returns the verdict on a worker from the ends of its ranks; None if no rank failed by itself.

    ``out_of_memory``: whether processes of this worker were killed for lack of memory, by the kernel or before it.
    """

    def when(end: RankEnd) -> tuple[str, int]:
        # A rank without an exception died at once, before others could notice.
        failure = end.outcome.failure if end.outcome else None
        return (failure.time if failure else "", end.order)

    failed = [end for end in ends if end.failed]
    if not failed:
        return None
    roots = [end for end in failed if not end.follows]
    is_aborted = bool(roots) and all(end.outcome is None and end.left_steps for end in roots)
    left = left_loop_verdict(ends, worker=worker)
    if left and any(end.went_on for end in ends) and (is_aborted or not roots):
        return left
    if is_aborted:  # whether other workers' ranks went on, is theirs to say
        roots = []
    if any(end.outcome and end.outcome.failure for end in roots):  # a backend aborts a rank whose peer has gone
        roots = [end for end in roots if end.outcome or end.exit_code != -signal.SIGABRT]
    if roots:
        return _of_root(min(roots, key=when), worker, out_of_memory)
    first = min(failed, key=when)
    return Verdict(exits.PEER, "peer", f"rank {first.rank} lost its peers: {_words(first)}", worker, root_cause=False)


def left_loop_verdict(ends: Sequence[RankEnd], *, worker: int) -> Verdict | None:
    """Returns the verdict on a worker with a rank that left its loop over session.steps while other ranks went on."""
    end = next((end for end in ends if end.left_steps), None)
    if end is None:
        return None
    message = (
        f"rank {end.rank} left the loop over session.steps {end.left_steps}, while other ranks went on and waited for "
        "it. A break, a return, or an exception that is caught outside of the loop, leaves it on one rank alone: leave "
        "it on all ranks in the same step, by a value that is the same on all of them, as after "
        "torch.distributed.all_reduce(value)"
    )
    return Verdict(exits.CODE, "code", message, worker)


def stop_verdict(worker: int, signal_name: str) -> Verdict:
    """Returns the verdict on a worker that got a signal to stop."""
    return Verdict(exits.STOPPED, "preemption", f"the worker was asked to stop by {signal_name}", worker)


def follower_verdict(root: Verdict | None, verdict: Verdict) -> Verdict:
    """Returns the verdict on a worker that only lost its peer; it names the peer's verdict if that is known.

    After a final verdict it is final too, because a restarted worker would wait for a group that never forms.
    """
    if root is None:
        return verdict
    if verdict.exit_code == exits.SPENT:
        return verdict if root.worker == verdict.worker else replace(verdict, root_cause=False, follows=root.worker)
    if root.worker == verdict.worker:
        return root
    if root.exit_code in (exits.SPENT, exits.RESIZED):
        return replace(root, worker=verdict.worker, root_cause=False, follows=root.worker)
    code = exits.PEER if root.retryable else root.exit_code
    cause = root.cause if root.exit_code == exits.STOPPED else "peer"  # an attempt that was stopped is not charged
    message = f"stopped, because of {root.reason}" if root.root_cause else root.message
    return Verdict(code, cause, message, verdict.worker, root_cause=False, follows=root.worker)


def _of_root(end: RankEnd, worker: int, out_of_memory: bool) -> Verdict:
    outcome = end.outcome
    code: int = exits.KILLED
    cause: Cause | None = "killed"
    if outcome and end.has_own_fault:  # however its process went then
        code, cause, message = outcome.exit_code, outcome.cause, f" failed: {_words(end)}"
    elif end.exit_code is None:
        message = " hangs inside the kernel"
    elif end.exit_code == -signal.SIGKILL and out_of_memory:
        code, cause = exits.CODE, "memory"
        message = " was killed: the worker needed more memory than its limit, and another attempt would need as much"
    elif end.exit_code < 0:
        names = {known.value: known.name for known in signal.Signals}  # most real-time signals have none
        message = f" was killed by {names.get(-end.exit_code, f'signal {-end.exit_code}')}"
    elif end.exit_code == 0:
        code, cause = exits.CODE, "code"
        message = (
            " left with exit code 0 before train_func had returned (os._exit, or native code that ends the process), "
            "so that nothing tells whether its work was done; let train_func return instead"
        )
    elif outcome is None or outcome.exit_code == exits.DONE:
        code, cause = end.exit_code, "code"
        message = f" left with exit code {code} and no exception (os._exit, or native code)"
    elif outcome.exit_code == exits.STOPPED:
        message = " was told to stop by a signal that its supervisor had not sent"
    else:
        code, cause, message = outcome.exit_code, outcome.cause, f" failed: {_words(end)}"
    return Verdict(code, cause, f"rank {end.rank}{message}", worker)


def _words(end: RankEnd) -> str:
    if end.outcome is None:
        return f"exit code {end.exit_code}"
    if failure := end.outcome.failure:
        return f"{failure.type}: {failure.message}"
    return f"exit code {end.exit_code}; its error could not be recorded; only the log of the rank has it"
