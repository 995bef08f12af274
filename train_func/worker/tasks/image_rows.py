"""Reads, checks and divides the rows of image classification: images and their classes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import ImageClassification
from train_func.worker.inputs.image_folder import IS_FOLDER, LABEL
from train_func.worker.inputs.reader import class_names
from train_func.worker.inputs.spelling import is_spelled
from train_func.worker.tasks import labels
from train_func.worker.tasks.columns import is_text, missing_columns
from train_func.worker.tasks.kept_images import KeptImages, keep, look_at_each, name_of
from train_func.worker.tasks.sources import HELD_OUT, TRAINING, Sources, find_sources, where
from train_func.worker.tasks.targets import missing_classes
from train_func.worker.tasks.texts import overlap
from train_func.worker.tasks.train_eval_split import TrainEvalSplit, divide

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class ImageSplit(TrainEvalSplit):
    """Its tables have the columns ``sha256`` (of the image), ``label`` (the class's index) and ``row_id``."""

    images: Mapping[str, KeptImages]
    """Of every row of each part, "training" or "held-out"."""
    codes: Mapping[str, np.ndarray]
    """The class's index of every row of each part."""

    def rows(self, part: str) -> "Dataset":
        """Of one side: ``image``, ``label`` and ``row_id``; no image is copied into memory."""
        from datasets import Dataset, Features, Image, Value

        side = self.train if part == TRAINING else self.held_out
        held_in = part if part in self.images else TRAINING
        first_id = 0 if held_in == TRAINING else len(self.codes[TRAINING])
        images, codes = self.images[held_in], self.codes[held_in]
        columns = {"image": images.table["image"], "label": codes, "row_id": np.arange(len(codes)) + first_id}
        features = Features(image=Image(), label=Value("int64"), row_id=Value("int64"))
        table = pa.table(columns).replace_schema_metadata(features.arrow_schema.metadata)
        known_by = [images.key, held_in, first_id, hashlib.sha256(codes.tobytes()).hexdigest()]
        whole = Dataset(table, fingerprint=hashlib.sha256(json.dumps(known_by).encode()).hexdigest()[:16])
        return whole.select(side["row_id"].to_numpy() - first_id)


def split_image_rows(
    task: ImageClassification, seed: int, store: Store | None, cache: Path, *, decodes: bool
) -> ImageSplit:
    """Reads, checks and divides the rows of a task, without the seconds that importing `datasets` takes.

    ``decodes``: whether each image is tried, which has been done when the run was submitted.

    Raises:
        InvalidInput: with every fault of the data at once.
        StorageFailed: the store is away or denies.
    """
    sources = find_sources(task, (task.image, task.label), store, cache, classes=(task.label,))
    images, pixels, classes, notes = _checked(task, sources, cache, decodes=decodes)
    codes = classes.codes
    tables = {part: pa.table({"sha256": of.table["sha256"], "label": codes[part]}) for part, of in images.items()}
    divided = divide(task, seed, tables, codes, num_rows=sources.num_rows, each_stratum=True)
    train, held_out = divided.train, divided.held_out
    shown = pa.array(np.concatenate([pixels[part] for part in tables]))  # in the order of the row ids
    of_train, of_held_out = shown.take(train["row_id"]), shown.take(held_out["row_id"])
    faults, said = overlap(of_train, of_held_out, divided.held_rows, "image")
    if len(train) > 1 and len(pc.unique(of_train)) == 1:
        seen = "".join(f"; {note}" for note in notes)  # which may be why
        faults.append(f"{where(task, TRAINING)}: all {len(train)} training images show the same{seen}")
    missing, more = missing_classes(train["label"], held_out["label"], classes.names, each_is_learnt=True)
    if faults := faults + missing:
        raise InvalidInput(faults, cause="data")
    said += [*more, *_contradictions(train, of_train, images[TRAINING])]
    notes = [*sources.notes, *notes, *classes.notes, *said, *divided.notes]
    return ImageSplit(train, held_out, classes.names, notes, sources, images, codes)


def _contradictions(train: pa.Table, shown: pa.Array, images: KeptImages) -> list[str]:
    """A note on images with different classes that show the same."""
    groups = (
        train.append_column("shown", shown)
        .group_by("shown")
        .aggregate([("label", "count_distinct"), ("row_id", "min")])
    )
    torn = groups.filter(pc.greater(groups["label_count_distinct"], 1))
    if not torn.num_rows:
        return []
    row = torn["row_id_min"][0].as_py()
    example = name_of(images.table["image"][row].as_py(), row)
    return [f"{torn.num_rows} training image(s) stand there with different classes, such as {example}"]


def _checked(
    task: ImageClassification, sources: Sources, cache: Path, *, decodes: bool
) -> tuple[dict[str, KeptImages], dict[str, np.ndarray], labels.Labels, list[str]]:
    """Images, what they show, and classes of every part; raises InvalidInput with all that is wrong in any of them."""
    faults: list[str] = []
    notes: list[str] = []
    images, pixels, labelled = {}, {}, {}
    for part, table in sources.tables.items():
        here = where(task, part)
        missing = missing_columns(table, here, [("image", task.image), ("label", task.label)])
        if not table.num_rows:
            missing.append(f"{here}: 0 rows; the {part} rows are expected there")
        faults += missing
        if missing:
            continue
        labelled[part] = table
        try:
            images[part] = _kept(task, sources, part, cache)
            pixels[part] = images[part].table["sha256"].to_numpy()
            if decodes:
                looks = look_at_each(images[part], part, cache)
                pixels[part], notes = looks.pixels, [*notes, *looks.notes]
        except InvalidInput as refused:
            faults += refused.faults
    classes = None
    try:
        classes = _classes(task, labelled) if labelled else None
    except InvalidInput as refused:
        faults += refused.faults
    if faults or classes is None:
        raise InvalidInput(faults, cause="data")
    return images, pixels, classes, notes


def _kept(task: ImageClassification, sources: Sources, part: str, cache: Path) -> KeptImages:
    table = sources.tables[part]
    source = sources.read["held_out" if part == HELD_OUT and "held_out" in sources.read else "dataset"]
    split = next(name for name, of in source.splits.items() if of is table)
    known_by = [source.fingerprint, task.subset if source.commit else None, split]
    return keep(
        table, task.image, root=source.where, known_by=known_by, has_commit=source.commit is not None, cache=cache
    )


def _classes(task: ImageClassification, tables: Mapping[str, pa.Table]) -> labels.Labels:
    """Integers that have names are taken by these, as folders are: ``labels`` orders names, and renames none."""
    named = {part: _named(table, task.label) for part, table in tables.items()}
    has_names = all(values is not None for values in named.values())
    parts = {part: named[part] if has_names else table[task.label] for part, table in tables.items()}
    kept: tuple[str, ...] = next((names for table in tables.values() if (names := class_names(table, task.label))), ())
    if not kept and task.label == LABEL and all(IS_FOLDER in (of.schema.metadata or {}) for of in tables.values()):
        kept = tuple(sorted({name for values in parts.values() for name in pc.unique(values).to_pylist()}))
    spelled = any(is_spelled(table, task.label) for table in tables.values())
    return labels.encode(parts, task.label, given=task.labels, kept=kept, spelled=spelled)


def _named(table: pa.Table, column: str) -> pa.ChunkedArray | None:
    """The labels as texts; None where some have no name, of which the message tells the range."""
    names, values = class_names(table, column), table[column]
    if is_text(values.type):
        return values
    known = pc.and_(pc.greater_equal(values, 0), pc.less(values, len(names))) if names else None
    if known is None or not pc.all(pc.fill_null(known, True)).as_py():
        return None
    return pc.take(pa.array(names), values)
