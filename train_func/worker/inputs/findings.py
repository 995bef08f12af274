"""Findings: what is wrong with a run and what is to be known of it, collected so that all is told at once."""

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
    """The collector that is passed down; also the report of a task's check."""

    faults: list[tuple[Cause, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of the data by name, plain JSON; ``num_train`` is the number of training rows."""
    summary: str = ""
    """The data in few words, for the line that tells of the submission."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Fingerprints of every input, by its field or key: the commit of what lies on the Hub, else of the content."""
    inputs: dict[str, LocalFiles] = field(default_factory=dict)
    """Files of this machine that are read, by field or key: a cluster has to be given them."""
    commits: dict[str, str] = field(default_factory=dict)
    """What branches and tags of the Hub are at this moment, by the field that names them; addresses by key."""
    num_model_bytes: int = 0
    """Bytes of the weights that every worker loads."""
    held_out_sha256: str = ""
    """Hash of the held-out rows, in their order: two runs with the same are measured on the same rows."""

    def fault(self, *texts: str, cause: Cause = "data") -> None:
        """Adds faults."""
        self.faults += [(cause, text) for text in texts]

    def fault_rows(
        self, column: str, part: str, rows: np.ndarray, problem: str, remedy: str, noun: str = "row", total: int = 0
    ) -> None:
        """Adds a fault of ``rows``, from 0, of the rows called ``part``, unless there are none.

        Args:
            problem: with the verb "{is}", which follows the number of rows.
            noun: of what stands in a row, of which one row may have several.
            total: how many there are of the noun, where that is worth telling.
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
        """Raises InvalidInput with all faults, where there are any; its cause is that of the first."""
        if self.faults:
            raise InvalidInput([text for _, text in self.faults], cause=self.faults[0][0])

    def add_input(self, field: str, found: "ModelFolder | RawDataset") -> None:
        """Adds what is known of an input of the task, which names it in ``field``, and its revision beside that."""
        self.fingerprints[field] = found.fingerprint
        if found.local:
            self.inputs[field] = found.local
        if found.commit:
            self.commits[f"{field}_revision"] = found.commit

    def add_named(self, key: str, found: "InputVersion") -> None:
        """Adds what is known of an input of the run, by its key."""
        self.note(*found.notes)
        self.fingerprints[key] = found.fingerprint
        if found.local:
            self.inputs[key] = found.local
        if found.pinned:
            self.commits[key] = found.pinned
