"""Image classification: images with one class each, and a model with a head for them or a module of the function's."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.layout import LABELS, SOURCE
from train_func.storage import Store
from train_func.tasks import ImageClassification
from train_func.worker.inputs.delimited import is_spelled
from train_func.worker.inputs.image_folder import IS_FOLDER, LABEL
from train_func.worker.inputs.model import FoundModel, find_model
from train_func.worker.inputs.model_folder import ModelUse
from train_func.worker.inputs.reader import class_names
from train_func.worker.tasks import labels
from train_func.worker.tasks.columns import is_text, missing_columns, overlap
from train_func.worker.tasks.images import KeptImages, decode, keep, look_at_each, name_of
from train_func.worker.tasks.metrics import Accuracy
from train_func.worker.tasks.protocol import Findings, Metric, Rows
from train_func.worker.tasks.targets import majority_baseline, missing_classes
from train_func.worker.tasks.train_eval_split import (
    HELD_OUT,
    TRAINING,
    Sources,
    TrainEvalSplit,
    divide,
    find_sources,
    where,
)

if TYPE_CHECKING:
    from datasets import Dataset

MOST_CLASSES = 8  # shown by name
IMAGES_AT_ONCE = 32  # that a published model is asked for
OF_A_MODULE = f"""\
It is a module of the function's own, whose class is in `{SOURCE}`. An instance of that class takes its weights:

```python
from pathlib import Path

from safetensors.torch import load_model

folder = Path("THIS FOLDER")
net = ...  # an instance of the class
load_model(net, folder / "model.safetensors")
net.eval()
```

The preprocessor in the folder turns images into what it takes, and `{LABELS}` has the names of the classes in the order
of its logits."""


class ImageClassifier:
    """The worker half of ImageClassification."""

    def __init__(self, task: ImageClassification, seed: int, store: Store | None, cache: Path) -> None:
        self._task, self._seed, self._store, self._cache = task, seed, store, cache
        self._found: FoundModel | None = None
        self._processor: Any = None
        """That of the model that was loaded last, where the function names no other."""

    def check(self) -> Findings:
        found = Findings()
        data = found.tried(lambda: split_image_rows(self._task, self._seed, self._store, self._cache, decodes=True))
        model = found.tried(lambda: self._find(weights=False))
        if model is not None:
            found.add_model(model)
        if data is not None:
            right = majority_baseline(data.train["label"].to_numpy(), data.held_out["label"].to_numpy())
            classes = f"{len(data.labels)} classes: {listed(data.labels, MOST_CLASSES)}"
            found.add_data(data, f"{classes} (majority-class baseline: {right:.0%} right)")
        return found

    def rows(self) -> Rows:
        split = split_image_rows(self._task, self._seed, self._store, self._cache, decodes=False)
        train, held_out = split.rows(TRAINING), split.rows(HELD_OUT)
        return Rows(train, held_out, split.sources.fingerprints, split.labels, split.notes)

    def _find(self, *, weights: bool = True) -> FoundModel | None:
        """None where the function makes a module of its own."""
        if self._task.model is None:
            return None
        use = ModelUse(
            "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
            "image classifier",
            "take one such as resnet, convnextv2, vit, swin or mobilenet_v2",
            None,
            needs_image_processor=True,
        )
        return find_model(self._task.model, self._task.model_revision, use, self._store, self._cache, weights=weights)

    def fetch(self) -> Mapping[str, str]:
        self._found = self._find()
        return {"model": self._found.fingerprint} if self._found else {}

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        model, self._processor = self._loaded(labels)
        return model, self._processor

    def _loaded(self, labels: tuple[str, ...]) -> tuple[Any, Any]:
        from train_func.worker.inputs.model_loading import load_image_processor, load_model

        if self._found is None:
            return None, self._own_processor()
        from transformers import AutoModelForImageClassification

        processor = load_image_processor(self._found)
        model = load_model(
            self._found,
            AutoModelForImageClassification,
            None,
            self._seed,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={name: index for index, name in enumerate(labels)},
            problem_type="single_label_classification",
        )
        if (channels := getattr(model.config, "num_channels", 3)) != 3:
            raise InvalidInput(
                f"{self._found.where}: takes images of {channels} channels; 3 are expected: red, green and blue",
                cause="model",
            )
        return model, processor

    def _own_processor(self) -> Any:
        """For a module of the function's own: images of one size, with values from -1 to 1."""
        from transformers import ViTImageProcessorPil

        return ViTImageProcessorPil(size={"height": self._task.size, "width": self._task.size})

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from datasets import Image

        from train_func.worker.tasks.images import COLUMN

        return rows.cast_column("image", Image(decode=False)).rename_column("image", COLUMN)

    def collator(self, processor: Any, *, training: bool) -> Any:
        from train_func.worker.tasks.images import ImageCollator

        if (made_by := processor or self._processor) is None:
            raise InvalidInput(
                "there is no image processor to make batches with: give Trainer processing_class=processor, the second "
                "of what session.model() returns",
                cause="code",
            )
        return ImageCollator(made_by, augment=training and self._task.augment)

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        return None

    def metric(self) -> Metric:
        return Accuracy()

    def pipeline(self) -> Mapping[str, Any]:
        return {} if self._task.model is None else {"task": "image-classification"}

    @property
    def has_one_class(self) -> bool:
        return self._task.model is not None  # a module of the function's own is no pipeline that could be asked

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        from datasets import Image

        stored = rows.cast_column("image", Image(decode=False))  # `datasets` decodes fewer of them than this package
        asked = (stored[start : start + IMAGES_AT_ONCE]["image"] for start in range(0, len(rows), IMAGES_AT_ONCE))
        decoded = ([decode(of["bytes"], name_of(of)) for of in images] for images in asked)
        return [best["label"] for images in decoded for best, *_ in use(images, batch_size=IMAGES_AT_ONCE)]

    def card(self, labels: tuple[str, ...]) -> str:
        names = "\n".join(f"- {name}" for name in labels)
        text = f"---\npipeline_tag: image-classification\n---\n\nA classifier of images, with the classes\n\n{names}\n"
        return text if self._task.model is not None else f"{text}\n{OF_A_MODULE}\n"


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
