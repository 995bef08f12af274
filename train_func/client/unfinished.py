"""The unfinished run that a new one is told to go on from.

A changed line of the source makes another run, which has no checkpoint. Without a task, so do other workers.
"""

from dataclasses import replace

from train_func.client.backend import Backend
from train_func.client.elsewhere import refuse_elsewhere
from train_func.client.identity import newest_generation, stored
from train_func.client.job import Job
from train_func.client.stored_run import FINISHED, all_ends, newest_checkpoint, refused_checkpoints
from train_func.client.unknown_run import whole_name
from train_func.errors import InvalidInput, JobNotFound, StorageFailed
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store
from train_func.text import shown

OF_PLAN = ("epochs", "batch_size", "seed")


def resumed(
    asked: RunRecord, name: str | None, backend: Backend, store: Store, *, is_known: bool, fresh: bool
) -> RunRecord:
    """``asked`` with the run of this name as the one with whose checkpoints it is to go on; None: as it was before.

    Where that one has none itself, it is the one which that was to go on with. One whose checkpoints its workers have
    refused is forgotten.

    Raises:
        JobNotFound: the store has no such run.
        InvalidInput: that has not ended, has no checkpoint, or another plan; or ``asked`` has checkpoints that are
            none of its; or ``fresh`` was given too.
    """
    if name is None:
        before = stored(store, asked.name, asked.generation) if is_known and not fresh else asked
        if before.resumes and _never_took(before, store):
            print(
                shown(
                    f"note: {asked.name} was submitted with resume={before.resumes!r} before; the checkpoints of that "
                    "run could not be gone on from, and are not used any more"
                )
            )
            return asked
        return replace(asked, resumes=before.resumes, resumes_generation=before.resumes_generation)
    if fresh:
        raise InvalidInput(f"fresh=True trains from the beginning, resume={name!r} does not; give one of them")
    if own := newest_checkpoint(store, asked):
        before = stored(store, asked.name, asked.generation) if is_known else asked
        if not (before.resumes and before.resumes.startswith(name)) and not _led_to(store, name, before):
            raise InvalidInput(
                f"resume={name!r}: {asked.name} has a checkpoint of its own, {own}, and goes on from that: submit "
                f"without resume. To go on from the other run instead, remove({asked.name!r}) first"
            )
        return replace(asked, resumes=before.resumes, resumes_generation=before.resumes_generation)
    name = whole_name(store, name, "submit")
    other = stored(store, name, newest_generation(store, name))
    if other.name == asked.name:
        raise InvalidInput(f"resume={name!r} is the run itself: it goes on from its own checkpoints without that")
    if (state := Job(other, backend, store).state) not in (*FINISHED, "Absent"):
        raise InvalidInput(f"resume={name!r}: that run is {state}; wait for its end, or stop it first")
    refuse_elsewhere(other, backend, store)
    if not newest_checkpoint(store, other):
        before = replace(other, name=other.resumes, generation=other.resumes_generation)
        if not before.name or not newest_checkpoint(store, before):
            raise InvalidInput(
                f"resume={name!r}: that run has no checkpoint: it saved none, or has succeeded, and keeps none then. "
                "Submit without resume"
            )
        other = stored(store, before.name, before.generation)
    _check_plan(asked.run, other)
    return replace(asked, resumes=other.name, resumes_generation=other.generation)


def _led_to(store: Store, name: str, before: RunRecord) -> bool:
    """Whether a run was told to go on with ``name``, and goes on with the one which that was to go on with."""
    try:
        name = whole_name(store, name, "submit")
        return bool(before.resumes) and stored(store, name, newest_generation(store, name)).resumes == before.resumes
    except JobNotFound:
        return False


def _check_plan(run: Run, other: RunRecord) -> None:
    """Every plan has these of the Run, and a place in one plan is none in another."""
    saved = {name: getattr(other.run, name, None) for name in OF_PLAN}
    if differing := [name for name in OF_PLAN if saved[name] != getattr(run, name)]:
        were = ", ".join(f"{name}={saved[name]}" for name in differing)
        now = ", ".join(f"{name}={getattr(run, name)}" for name in differing)
        raise InvalidInput(
            f"resume={other.name!r}: its checkpoint is of a training with {were}, and this Run has {now}. Give the Run "
            "the same, or submit without resume, which trains from the beginning"
        )


def _never_took(before: RunRecord, store: Store) -> bool:
    """Whether the workers have refused the checkpoints that it was to go on from."""
    try:
        return refused_checkpoints(all_ends(store, before)) == before.resumes
    except StorageFailed as failure:
        if failure.reason != "damaged":
            raise
        return False  # another version of this package has written how they ended
