"""Job: the handle on what executes a run and on what it publishes, the same for every backend and every kernel."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.client.backend import Backend, backend_or_default
from train_func.client.elsewhere import whereabouts
from train_func.client.status import JobEvent
from train_func.client.stored_attempts import job_state, workers_of
from train_func.client.stored_run import (
    Submission,
    attach_expression,
    complete_model,
    newest_generation,
    published_keys,
    published_result,
    whole_name,
)
from train_func.errors import InvalidInput, JobFailed, JobNotFound, StorageFailed, TrainFuncError, WatchInterrupted
from train_func.fields import whole_fault
from train_func.process.timeout import call_with_timeout
from train_func.storage import Store, open_store
from train_func.text import in_ipython, numbered_workers, shown
from train_func.wire.events import Alert
from train_func.wire.layout import RunKeys
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    import pandas
    from transformers import Pipeline

    from train_func.client.control.move import Move, Workers
    from train_func.client.display.history import History
    from train_func.client.display.screen import Screen
    from train_func.client.drill import DrillReport
    from train_func.client.logs import LogText
    from train_func.client.watch import JobLooks

REPR_SECONDS = 3.0  # for a job's repr


class Job:
    """The handle on a run, which ``submit`` and ``attach`` return. Another process finds the same by the run's name."""

    def __init__(
        self,
        record: RunRecord,
        backend: Backend,
        store: Store,
        promoted_as: str = "",
        printed_notes: Collection[str] = (),
    ) -> None:
        """``promoted_as``: the name of its model in place, if attached to by it. ``printed_notes``: at submission."""
        self.record, self._printed_notes = record, frozenset(printed_notes)
        self._shown_notes: set[str] = set()  # by the last screen: result() does not repeat them
        self._backend, self._store, self._promoted_as = backend, store, promoted_as
        self._job = backend.job(record.job_name)

    def __repr__(self) -> str:
        generation = "" if self.record.generation == 1 else f", generation {self.record.generation}"
        try:
            state = call_with_timeout(REPR_SECONDS, lambda: self.state)
        except (TrainFuncError, TimeoutError):
            state = "state unknown"
        return f"Job({self.name!r}{generation}, {state})"

    def _repr_html_(self) -> str | None:
        from train_func.client.display.page import draw_handle

        return draw_handle(self._looks, REPR_SECONDS)

    @property
    def name(self) -> str:
        """The run's name; ``attach(name)`` finds it again from any kernel."""
        return self.record.name

    @property
    def attach_expression(self) -> str:
        """The expression that returns this handle in another kernel."""
        return attach_expression(self.name, self._backend)

    @property
    def state(self) -> str:
        """Created, Running, Restarting, Suspended, Succeeded, Failed, Cancelled, Interrupted, or Absent.

        If the job was deleted or has expired, the store tells how it ended; Absent means that it holds no end.
        """
        return job_state(self._job.status(), self.record.keys, self._store, self._backend)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest that was submitted; for a job of Local() the JobSpec from which manifests are rendered."""
        newest = Submission.newest(self._store, self.record.keys)
        return dict(newest.manifest) if newest else {}

    def wait(self, timeout: float | None = None) -> str:
        """Waits until the job has finished, and returns its state. What hinders the job is printed once.

        Raises:
            JobFailed: the job cannot go on without a change from outside; it is left as it is.
            TimeoutError: after ``timeout`` seconds; the job goes on.
        """
        return self._looks.wait(timeout, self._note)

    def watch(self, on_alert: Callable[[Alert], object] | None = None) -> str:
        """Shows state, progress and evaluations as they come, until the job has finished; returns its state.

        If the job had finished before, only a summary is printed. An interrupt ends the watching, and the job goes on;
        in a notebook the cells behind this one do not run, as after any interrupt.

        Args:
            on_alert: is called with each alert of the newest submission, also with those from before the watching. The
                first exception that it raises is printed; none ends the watching.
        """
        screen = self._screen()
        self._show(screen, on_alert)
        return screen.state or "Created"

    def _screen(self) -> "Screen":
        """Returns the best screen that there is where this program prints."""
        from train_func.client.display.screen import screen_of

        return screen_of(self._looks, self._printed_notes)

    def _show(self, screen: "Screen", on_alert: Callable[[Alert], object] | None = None) -> JobFailed | None:
        """Shows the job on this screen, as ``watch`` does; returns why it has no result, None where it has one."""
        from train_func.client.diagnose import separate
        from train_func.client.watch import AlertCallback

        callback = AlertCallback(on_alert, self._note) if on_alert else None
        state, failure = "", None
        try:
            for news in self._looks.news():
                screen.take(news)
                state, failure = news.state, news.failure
                if callback:
                    callback.take(news)
            self._looks.refuse_absent(state)
            failure = self._looks.failure(state) or failure
            screen.finish(failure)
            self._shown_notes = set(screen.notes)
            if state == "Succeeded" and (words := separate(self.record, self._store)):
                self._note(words)
                self._shown_notes.add(words)
        except KeyboardInterrupt:
            screen.finish()
            raise self._left_running("watching", "watch", "shows it again") from None
        finally:
            screen.close()
        return failure

    def report(self, path: str | Path | None = None, *, texts: bool = True) -> Path:
        """Writes a page of HTML about the run as it is now, and returns its path. The page needs no other file.

        It shows what ``watch`` shows, what the model gets wrong, the Run, the attempts, and the function.

        Args:
            path: the file, or the folder of a file that is named as the run; default: the working directory.
            texts: show rows with the beginnings of their texts, where this machine can read the data.

        Raises:
            InvalidInput: the folder is not there.
        """
        from train_func.client.display.page import write_page

        return write_page(path, self._looks, texts=texts)

    @property
    def _looks(self) -> "JobLooks":
        from train_func.client.watch import JobLooks

        return JobLooks(self.record, self._job, self._store, self._backend)

    def logs(self, *, follow: bool = False, worker: int | None = None, attempt: int | None = None) -> "LogText":
        """Returns the lines of all workers, each behind its worker, with a heading for each attempt.

        As the last expression of a cell it shows them.

        Args:
            follow: go on until the job, or the attempt, has finished.
            worker: only the lines of this worker.
            attempt: only the lines of this attempt, by the number in its heading.

        Raises:
            InvalidInput: no attempt had such a worker.
            JobNotFound: there is no such attempt.
        """
        from train_func.client.logs import LogText

        if worker is not None:
            known = workers_of(self._store, self.record)
            if worker not in known:
                raise InvalidInput(f"worker={worker!r}: {self.name} has {numbered_workers(known)}")
        if attempt is not None and (fault := whole_fault("attempt", attempt, 1)):
            raise InvalidInput(fault)
        return LogText(partial(self._looks.lines, self._note, worker, attempt, is_followed=follow), follow=follow)

    def events(self) -> list[JobEvent]:
        """Returns what happened to the job and its workers, oldest first."""
        return list(self._job.look(with_logs=False).events)

    def alerts(self) -> list[Alert]:
        """Returns the alerts of the run, oldest first; each has kind, message, remedy, step and time."""
        events = (line.event for line in self._looks.lines(self._note, is_followed=False))
        return sorted((event for event in events if isinstance(event, Alert)), key=lambda alert: alert.time)

    def history(self, since: int | None = None) -> "History":
        """Returns every reported step and evaluation as a DataFrame. The later attempt counts for a repeated step.

        ``job.history().plot()`` draws the metrics of the newest training over its steps, as the text of an SVG that
        a cell shows and a file keeps. With ``since`` it has only what is after that step of the newest training.
        """
        from train_func.client.display.history import history_of, read_rows  # pandas takes long to import

        return history_of(read_rows(self._store, self.record.keys, since), self.name)

    def predictions(self) -> "pandas.DataFrame":
        """Returns what the published model predicts of each held-out row, of 20,000 rows at most.

        Columns: ``expected``, ``predicted``, ``confidence``, or loss and tokens; ``text`` where the data can be read.
        Raises StorageFailed where the run has published none, as after a loop of its own.
        """
        from train_func.client.model.held_out import predictions_of

        return predictions_of(self.record, self._store, self._note)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits for the end, then returns the published metrics together with what the function returned.

        A returned value that is no dict stands under ``returned``.

        Raises:
            JobFailed: naming the cause, the worker and the line of the cell.
            TimeoutError: after ``timeout`` seconds; the job goes on.
        """
        from train_func.client.diagnose import separate

        try:
            state = self.wait(timeout)
        except KeyboardInterrupt:
            raise self._left_running("waiting", "result", "waits again") from None
        if failure := self._looks.failure(state):
            raise failure
        published = published_result(self._store, self.record.keys)
        if published is None:
            return {}
        for words in (separate(self.record, self._store), published.note):
            if words and words not in self._shown_notes:
                self._note(words)
        return published.values

    def cancel(self) -> None:
        """Stops the workers. When the run is submitted again, it goes on from the newest checkpoint, which is printed.

        A training that is over is published within the grace period: then the job succeeds. A job that has ended stays
        so, unless workers of it go on. One that cannot be asked and gives no sign of life is given up: its workers
        begin no further attempt.

        Raises:
            JobNotFound: there is no such job any more, or it runs on another backend.
        """
        from train_func.client.control.cancel import cancel

        cancel(self.record, self._job, self._backend, self._store, self._note)

    def drill(
        self,
        kill: str | Path,
        *,
        rank: int | None = None,
        worker: int | None = None,
        at_step: int | None = None,
        signal: str | None = None,
        seconds: float | None = None,
        compare: bool = False,
    ) -> "DrillReport":
        """Causes a fault on purpose while the job trains, waits until it trains again, and reports what that cost.

        Signals and deletions are real. Steps that were not saved are done again, and an attempt may be charged.

        Args:
            kill: ``"rank"`` and ``"hang"`` send a signal to a rank's process; ``"worker"`` to its supervisor, with
                which all of the worker ends; ``"pod"`` deletes a pod, ``"node"`` drains a node, ``"store"`` takes a
                store in a folder away for a time. Or a campaign of several, a file that ends in ``.json``.
            rank: the rank; default: the last one.
            worker: the worker, or that of the pod or on the node; default: the last one.
            at_step: the step after which it happens; default: at once, when the job trains.
            signal: ``"KILL"``, the default, or ``"TERM"``, which leaves time to save; of a rank also others.
            seconds: for which the store, or at most the node, is away; default: 10 and 30.
            compare: wait for the end, train the same Run undisturbed, and compare the weights by SHA-256.

        Raises:
            InvalidInput: there is no such fault, rank, worker or step, the job has ended, or rights are missing, with
                the Role that gives them; nothing was done then.
        """
        from train_func.client.drill import Target, campaign_of, drill

        campaign = campaign_of(kill, rank=rank, worker=worker, at_step=at_step, signal=signal, seconds=seconds)
        end_of = lambda record: Job(record, self._backend, self._store).wait()  # noqa: E731
        target = Target(self.record, self._job, self._store, self._backend, end_of)
        return drill(target, campaign, is_compared=compare)

    def scale(self, workers: int) -> None:
        """Changes the number of workers while the run trains, between ``min_workers`` and ``workers`` of the Run.

        The highest workers leave, or new ones join, at the end of a step. Raises InvalidInput if the run cannot have
        that size, a right is missing or the job is in a queue, and JobNotFound if its job does not run.
        """
        self._workers.scale(workers)

    def move(self, worker: int | None = None, *, to: Mapping[str, str], timeout: float | None = None) -> "list[Move]":
        """Moves a worker to a node with these labels while the run trains; prints and returns how it went.

        Without ``worker`` all workers move: one after the other if the run has ``min_workers``, else together, between
        two steps. A worker that starts again later starts on such a node, too.

        Args:
            worker: its number.
            to: labels of the node, such as ``{"topology.kubernetes.io/zone": "b"}``.
            timeout: seconds after which TimeoutError ends the waiting; the job goes on.

        Raises:
            InvalidInput: the worker cannot be moved, the job is in a queue, or a right for that is missing.
            JobFailed: the worker cannot start there without a change from outside.
            JobNotFound: its job does not run here.
        """
        return self._workers.move(worker, to, timeout)

    @property
    def _workers(self) -> "Workers":
        from train_func.client.control.move import Workers

        return Workers(self.record, self._job, self._backend, self._store, self._note)

    def delete(self) -> None:
        """Stops the workers and removes the job with its pods from the backend; prints what stays.

        The run stays in the store, with its record, logs and model. ``train_func.remove`` removes the run.
        """
        from train_func.client.control.cancel import delete

        delete(self.record, self._job, self._backend, self._store, self._note)

    def fetch(self, what: str = "model", *, to: str | Path | None = None) -> Path:
        """Downloads the published model and verifies it; returns its folder.

        Args:
            what: ``"model"``, or ``"merged"`` for published adapters: the whole model with the adapters in its weights.
            to: the folder; by default one named after the run, where this machine keeps models.

        Raises:
            StorageFailed: no model is published yet, or a file is not what was published.
            InvalidInput: the folder holds other files, or fetched ones that were changed since; nothing is changed. Or
                the run has succeeded without a model (cause "code").
        """
        from train_func.client.model.fetch import fetch, models_folder

        if what == "merged":
            from train_func.client.model.load import merge

            return merge(self.record, self.fetch(), to)
        if what != "model":
            raise InvalidInput(f"fetch({what!r}): 'model' or 'merged' is expected; a folder is given as to=...")
        folder = Path(to) if to is not None else models_folder() / (self._promoted_as or self.name)
        try:
            keys = self.record.keys if self._promoted_as else published_keys(self._store, self.record.keys)
            fetched = fetch(self._store, keys, folder.expanduser().absolute())
            complete_model(self._store, self.record, lambda: self.state)
            return fetched
        except StorageFailed as failure:
            if failure.reason != "absent":
                raise
            state = self.state
            if state == "Succeeded":
                raise InvalidInput(
                    f"{self.name} has succeeded without a model: its function published nothing and left no files in "
                    "its working folder. Call session.publish(...) in it, or write files there, and submit it again",
                    cause="code",
                ) from None
            other_place = whereabouts(self.record.keys, self._store, self._backend) if state == "Absent" else ""
            where = other_place or "result() waits for its end, or tells why"
            raise StorageFailed(
                f"{self.name} has published no model in {self._store.address}: it is {state}; {where}", reason="absent"
            ) from None

    def load(self) -> "Pipeline":
        """Returns a ``transformers`` pipeline of the fetched and verified model; runs no code from its folder.

        The model is what was published. Every account that can write to the store can publish.

        Raises:
            InvalidInput: the run has no task, or published no model of it; the files are listed.
        """
        from train_func.client.model.load import base_of, check_loadable, ready
        from train_func.published_model import are_adapters

        if published := published_result(self._store, self.record.keys):
            check_loadable(self.record, published)
        folder = self.fetch()
        return ready(folder, base_of(self.record, folder) if are_adapters(folder) else None)

    def promote(self, name: str, *, better: str | None = None) -> bool:
        """Puts the published model in place under ``name``; returns whether it is in place now, and prints why.

        ``attach(name)`` then finds this run, and its ``fetch()`` and ``load()`` give this model, also while another one
        is put in place. The files are first copied to a folder under ``models/<name>/`` in the store, which is printed.
        To go back to an earlier model, promote its run again.

        Args:
            name: small letters, digits and hyphens, such as ``"reviews"``.
            better: promote only where the run is better in this metric than the one in place, on the same held-out
                rows. A minus says that a lower value is better, as in ``"-loss"``.

        Raises:
            InvalidInput: no model is published, or the run cannot be compared, also where nothing is in place yet;
                nothing was changed.
            StorageFailed: reason "conflict" when another client was quicker; or the store's own failure.
        """
        from train_func.client.model.promote import promote

        is_in_place, why = promote(self._store, self.record, name, better=better)
        self._note(why)
        return is_in_place

    def push_to_hub(self, repo: str, *, private: bool | None = None) -> str:
        """Pushes the verified model to a repository of the Hugging Face Hub, and returns the repository's address.

        All published files go there as one commit, with the model's card, the function's source and ``run.json``. The
        same model again makes no commit. A README.md that was changed on the Hub stays, and a note says so. The token,
        with write access, is HF_TOKEN or the login of ``hf auth login``.

        Args:
            repo: ``"owner/name"``, or ``"name"`` for the token's own account; it is created if it does not exist.
            private: whether a new repository is private; None: as the account's settings say, by default public.

        Raises:
            InvalidInput: there is no token, or no such repository can be.
            StorageFailed: no model is published, or the Hub refuses or is away; the repository is as it was.
        """
        from train_func.client.model.push import check_target, push

        check_target(repo)
        address, notes = push(self.fetch(), repo, self.name, private=private)
        for note in notes:
            self._note(note)
        return address

    def _note(self, words: str) -> None:
        print(shown(f"{self.name}: {words}"), flush=True)

    def _left_running(self, what: str, verb: str, does: str) -> WatchInterrupted:
        again, cancel = self._looks.how_to(verb), self._looks.how_to("cancel")
        words = f"{self.name}: stopped {what}; the job keeps running: `{again}` {does}, `{cancel}` stops it"
        if not in_ipython():  # which shows the words of what is raised
            print(words)
        return WatchInterrupted(words)


def attach(name: str, *, on: Backend | None = None) -> Job:
    """Returns the handle on a submitted run, in any kernel.

    Args:
        name: the name of the run, or a beginning that no other run has. Or the name under which a model is in place:
            then the handle is on the run that made the model, and its name is printed.
        on: the backend of the job; by default the one that the run was submitted to, which the store of ``Local()``
            knows.

    Raises:
        InvalidInput: the names of several runs begin so.
        JobNotFound: the store of that backend holds no such run; the most similar names are listed.
    """
    from train_func.client.model.promote import in_place

    backend = backend_or_default(on)
    store = open_store(backend.store_address())
    if model := in_place(store, name):
        keys = RunKeys(model.run, model.generation)
        print(f"{model.name}: the model in place, of the run {model.run}", flush=True)
    else:
        run = whole_name(store, name, "attach")
        keys = RunKeys(run, newest_generation(store, run) or 1)
    newest = Submission.newest(store, keys)
    if newest is None:
        raise JobNotFound(f"{store.address} holds no submission of {keys.name}")
    return Job(newest.run, (None if on else newest.reachable()) or backend, store, model.name if model else "")
