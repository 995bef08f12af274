"""Findings: the faults, notes and facts of a run, collected so that all of them are reported at once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from train_func.errors import Cause, InvalidInput, StorageFailed
from train_func.text import are, counted, in_rows
from train_func.worker.inputs.locate import HubUnreachable, LocalFiles

if TYPE_CHECKING:
    from train_func.worker.inputs.model_folder import ModelFolder
    from train_func.worker.inputs.named import InputVersion
    from train_func.worker.inputs.reader import RawDataset

Result = TypeVar("Result")


@dataclass
class Findings:
    """A collector that is passed down the calls; it is also the report of a task's check."""

    faults: list[tuple[Cause, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of the data by name, plain JSON; ``num_train`` is the number of training rows."""
    summary: str = ""
    """The data in a few words, for the line that submit prints."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """The fingerprint of each input by its field or key: its commit on the Hub, else the hash of its content."""
    inputs: dict[str, LocalFiles] = field(default_factory=dict)
    """Files of this machine that are read, by field or key; a cluster gets them by upload."""
    commits: dict[str, str] = field(default_factory=dict)
    """The commits that branches and tags of the Hub point to now, by the field that names them; addresses by key."""
    num_model_bytes: int = 0
    """Bytes of the weights that every worker loads."""
    held_out_sha256: str = ""
    """Hash of the held-out rows in their order; runs with equal hashes are evaluated on the same rows."""

    def fault(self, *texts: str, cause: Cause = "data") -> None:
        """Adds faults."""
        self.faults += [(cause, text) for text in texts]

    def fault_rows(
        self, column: str, part: str, rows: np.ndarray, problem: str, remedy: str, noun: str = "row", total: int = 0
    ) -> None:
        """Adds one fault for ``rows``, counted from 0, of the rows called ``part``, unless there are none.

        Args:
            problem: with the verb "{is}", which follows the number of rows.
            noun: what a row holds; one row may hold several.
            total: how many of the noun there are; 0 leaves it out.
        """
        if num := len(rows):
            count = f"{num} of {counted(total, noun)}" if total else counted(num, noun)
            verb = problem.replace("{is}", are(num))
            self.fault(f"column {column!r}: {count} of the {part} rows {verb}, {in_rows(np.unique(rows))}; {remedy}")

    def note(self, *texts: str) -> None:
        """Adds notes, each once."""
        self.notes += [text for text in dict.fromkeys(texts) if text not in self.notes]

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Returns what ``work`` returns, or None with its faults added."""
        try:
            return work()
        except InvalidInput as error:
            self.fault(*error.faults, cause=error.cause)
        except HubUnreachable as error:
            self.fault(str(error), cause=error.input_cause)
        except StorageFailed as error:
            self.fault(str(error), cause=error.cause)
        return None

    def refuse(self) -> None:
        """Raises InvalidInput with all faults, if there are any, and the cause of the first."""
        if self.faults:
            raise InvalidInput([text for _, text in self.faults], cause=self.faults[0][0])

    def add_input(self, field: str, source: "ModelFolder | RawDataset") -> None:
        """Adds fingerprint, files and commit of the input that a task names in ``field``."""
        self.fingerprints[field] = source.fingerprint
        if source.local:
            self.inputs[field] = source.local
        if source.commit:
            self.commits[f"{field}_revision"] = source.commit

    def add_named(self, key: str, version: "InputVersion") -> None:
        """Adds notes, fingerprint, files and commit of an input of the run, by its key."""
        self.note(*version.notes)
        self.fingerprints[key] = version.fingerprint
        if version.local:
            self.inputs[key] = version.local
        if version.pinned:
            self.commits[key] = version.pinned
