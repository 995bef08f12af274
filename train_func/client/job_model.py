"""What a job has published, as a user takes it: fetched, loaded, put in place under a name."""

from pathlib import Path
from typing import TYPE_CHECKING

from train_func.client.adapters import base_of, write_merged
from train_func.client.backend import Backend
from train_func.client.elsewhere import other_backend
from train_func.client.fetch import fetch, fetch_alone
from train_func.client.in_place import promote
from train_func.client.in_place_record import InPlace
from train_func.client.load import check_loadable, ready
from train_func.client.push import check_target, push
from train_func.client.stored_run import NO_MODEL, published_result
from train_func.errors import InvalidInput, StorageFailed
from train_func.published_model import are_adapters
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.text import shown

if TYPE_CHECKING:
    from transformers import Pipeline


class JobModel:
    """The part of a Job that concerns its model."""

    def __init__(self, record: RunRecord, backend: Backend, store: Store, in_place: InPlace | None) -> None:
        self.record = record
        self._backend, self._store, self._in_place = backend, store, in_place

    @property
    def name(self) -> str:
        """The run's name; ``attach(name)`` finds it again from any kernel."""
        return self.record.name

    @property
    def state(self) -> str:
        """One word; see Job."""
        raise NotImplementedError

    def fetch(self, what: str = "model", *, to: str | Path | None = None) -> Path:
        """Downloads the published model and verifies it; returns its folder.

        Args:
            what: ``"model"``; or ``"merged"``, where adapters are published: the whole model that they are adapters of,
                with them in its weights.
            to: the folder; by default one named after the run, where this machine keeps models.

        Raises:
            StorageFailed: no model is published yet, or a file is not what was published.
            InvalidInput: the folder holds other files, or fetched ones that were changed since; nothing is changed.
        """
        if what == "merged":
            return self._fetch_merged(to)
        if what != "model":
            raise InvalidInput(f"fetch({what!r}): 'model' or 'merged' is expected; a folder is given as to=...")
        held, keys = self._in_place, self.record.keys
        folder = Path(to) if to is not None else self._backend.models_folder() / (held.name if held else self.name)
        folder = folder.expanduser().absolute()
        try:
            if held:
                published = self._store.get(keys.result).data
                return fetch_alone(self._store, keys.attempt(held.attempt).model, folder, published)
            return fetch(self._store, keys, folder)
        except StorageFailed as failure:
            if failure.reason != "absent":
                raise
            state = self.state
            way = (self._other_backend() if state == "Absent" else "") or NO_MODEL[state]
            raise StorageFailed(
                f"{self.name} has published no model in {self._store.address}: it is {state}; {way}", reason="absent"
            ) from None

    def promote(self, name: str, *, better: str | None = None) -> bool:
        """Puts the published model in place under ``name``; returns whether it is in place now, and prints why.

        ``attach(name)`` finds the run that is in place, so that its ``fetch()`` and ``load()`` give that model, also
        while another one is put in place; its files lie under ``models/<name>/model`` in the store. To go back to an
        earlier model is to promote its run again.

        Args:
            name: small letters, digits and hyphens, such as ``"reviews"``.
            better: promote only where the run is better in this metric than the one in place, on the same held-out
                rows. A minus says that a lower value is better, as in ``"-loss"``.

        Raises:
            InvalidInput: no model is published, or the run cannot be compared, also where nothing is in place yet;
                nothing was changed.
            StorageFailed: reason "conflict" when another client was quicker; or the store's own failure.
        """
        is_in_place, why = promote(self._store, self.record, name, better=better)
        self._note(why)
        return is_in_place

    def push_to_hub(self, repo: str, *, private: bool | None = None) -> str:
        """Pushes the fetched and verified model, with its card, to a repository of the Hugging Face Hub; its address.

        All published files go there as one commit, the function's source and ``run.json`` among them. The same model
        again makes no commit. A README.md that was written or changed there stays, which is told. The token, with write
        access, is that of HF_TOKEN or of ``hf auth login``.

        Args:
            repo: ``"owner/name"``, or ``"name"`` of the token's own account; it is made where there is none.
            private: of a repository that is made; None: as the account has it, which is public unless changed.

        Raises:
            InvalidInput: there is no token, or no such repository can be.
            StorageFailed: no model is published, or the Hub refuses or is away; the repository is as it was.
        """
        check_target(repo, private)
        pushed = push(self.fetch(), repo, self.name, private=private)
        address = pushed.address
        self._note(f"its model is in {address}" if pushed.is_new else f"its model was in {address} already")
        if pushed.is_card_left_out:
            self._note(
                f"README.md in {address} is none that was pushed, and stays as it is; it may tell of another model. "
                "To have the card of this one there, delete it and push again"
            )
        return address

    def load(self) -> "Pipeline":
        """A ready ``transformers`` pipeline of the fetched and verified model; runs no code out of its folder.

        Verified means: as it was published. Every account that can write to the store can publish.

        Raises:
            InvalidInput: the run has no task, or the files are no model of it; with names and sizes of what there is.
        """
        if published := published_result(self._store, self.record):
            check_loadable(self.record, published)
        folder = self.fetch()
        return ready(folder, base_of(self.record, folder) if are_adapters(folder) else None)

    def _fetch_merged(self, to: str | Path | None) -> Path:
        adapters = self.fetch()
        if not are_adapters(adapters):
            raise InvalidInput(f"{self.name} has published a whole model and no adapters: fetch('model') brings it")
        folder = Path(to) if to is not None else adapters.with_name(f"{adapters.name}-merged")
        return write_merged(self.record, adapters, folder.expanduser().absolute(), is_ours=to is None)

    def _note(self, words: str) -> None:
        print(shown(f"{self.name}: {words}"), flush=True)

    def _other_backend(self) -> str:
        return other_backend(self._store, self.record, self._backend)
