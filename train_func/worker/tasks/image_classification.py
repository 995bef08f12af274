"""Image classification: images with one class each, for a model with a head or a module of the function's own."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.tasks import SINGLE, ImageClassification
from train_func.wire.layout import LABELS, SOURCE
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import judge_equal, judge_overlap, names_of_classes
from train_func.worker.tasks.image_decoding import (
    COLUMN,
    ImageCollator,
    ImageTable,
    decode,
    keep,
    look_at_each,
    name_of,
)
from train_func.worker.tasks.labels import encode
from train_func.worker.tasks.protocol import Rows, StreamingMetric, WorkerHalf
from train_func.worker.tasks.streaming_metrics import Accuracy
from train_func.worker.tasks.targets import classes_text, judge_classes
from train_func.worker.tasks.train_eval_split import HELD_OUT, TRAINING, Sources, TrainEvalSplit, divide, where

if TYPE_CHECKING:
    from datasets import Dataset

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


@dataclass(frozen=True, kw_only=True)
class ImageSplit(TrainEvalSplit):
    """A split with the columns ``sha256`` (of the image), ``label`` (index of the class) and ``row_id``."""

    images: Mapping[str, ImageTable]
    """The images of all rows, by part: "training" or "held-out"."""
    codes: Mapping[str, np.ndarray]
    """The index of the class of every row, by part."""

    def side(self, part: str) -> "Dataset":
        """Returns the rows of one side: ``image``, ``label`` and ``row_id``; no image is copied into memory."""
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


class ImageClassifier(WorkerHalf[ImageClassification]):
    """The worker half of ImageClassification."""

    needs_image_processor = True
    _processor: Any = None
    """The processor of the model that was loaded last, for a Trainer without one."""

    def split(self, sources: Sources, findings: Findings, *, decodes: bool = True) -> ImageSplit:
        """Judges and divides the rows; ``decodes``: whether to decode each image, which submit does already."""
        task = self.task
        tables = sources.having(task.image, task.label)
        images: dict[str, ImageTable] = {}
        pixels: dict[str, np.ndarray] = {}
        for part, table in tables.items():
            stored = findings.attempt(partial(self._store, sources, part, table))
            if stored is None:
                continue
            images[part], pixels[part] = stored, stored.table["sha256"].to_numpy()
            if decodes and (looks := findings.attempt(partial(look_at_each, stored, part, self.cache))):
                pixels[part] = looks.pixels
                findings.note(*looks.notes)
        labels = {part: table[task.label] for part, table in tables.items()}
        data_names = names_of_classes(tables, task.label)
        classes = encode(labels, task.label, findings, names=task.labels, data_names=data_names) if tables else None
        findings.refuse()
        assert classes is not None  # else it were a fault
        rows = {
            part: pa.table({"sha256": stored.table["sha256"], "label": classes.codes[part]})
            for part, stored in images.items()
        }
        strata, names = classes.codes, classes.names
        data = divide(task, self.seed, sources, rows, findings, strata=strata, labels=names, each_stratum=True)
        shown = pa.array(np.concatenate([pixels[part] for part in rows]))  # in the order of the row ids
        trained, held_out = shown.take(data.train["row_id"]), shown.take(data.held_out["row_id"])
        judge_overlap(trained, held_out, data.held_rows, findings, "image")
        if len(trained) > 1 and len(pc.unique(trained)) == 1:
            seen = "".join(f"; {note}" for note in findings.notes if note.startswith(TRAINING))  # which may be why
            findings.fault(f"{where(task, TRAINING)}: all {len(trained)} training images show the same{seen}")
        judge_classes(data, findings, each_is_learnt=True)
        judge_equal(trained, data.train["label"].to_numpy(), data.train["row_id"].to_numpy(), findings, "image")
        return ImageSplit(**vars(data), images=images, codes=classes.codes)

    def _store(self, sources: Sources, part: str, table: pa.Table) -> ImageTable:
        source, split = sources.parts[part]
        known_by = [source.fingerprint, self.task.subset if source.commit is not None else None, split]
        return keep(table, self.task.image, source, known_by, self.cache)

    def target(self, data: TrainEvalSplit) -> str:
        return classes_text(data)

    def rows(self) -> Rows:
        findings = Findings()
        data = self.divided_rows(findings, partial(self.split, decodes=False))
        return Rows(data.side(TRAINING), data.side(HELD_OUT), data.sources.fingerprints, data.labels, findings.notes)

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        if self.model is None:
            from transformers import ViTImageProcessorPil

            # Images of one size, with values from -1 to 1.
            self._processor = ViTImageProcessorPil(size={"height": self.task.size, "width": self.task.size})
            return None, self._processor
        from transformers import AutoModelForImageClassification

        from train_func.worker.inputs.model_loading import load_image_processor, load_model

        self._processor = load_image_processor(self.model)
        kind = AutoModelForImageClassification
        model = load_model(self.model, kind, None, self.seed, labels=labels, problem_type=SINGLE)
        if (channels := getattr(model.config, "num_channels", 3)) != 3:
            raise InvalidInput(
                f"{self.model.where}: takes images of {channels} channels; 3 are expected: red, green and blue",
                cause="model",
            )
        return model, self._processor

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from datasets import Image

        return rows.cast_column("image", Image(decode=False)).rename_column("image", COLUMN)

    def collator(self, processor: Any, *, training: bool) -> Any:
        image_processor = processor or self._processor
        if image_processor is None:
            raise InvalidInput(
                "Trainer has no image processor to make batches with: give it processing_class=processor, the second "
                "of what session.model() returns",
                cause="code",
            )
        return ImageCollator(image_processor, augment=training and self.task.augment)

    def metric(self) -> StreamingMetric:
        return Accuracy()

    def pipeline(self) -> Mapping[str, Any]:
        return {} if self.task.model is None else {"task": "image-classification"}

    @property
    def has_one_class(self) -> bool:
        return self.task.model is not None  # a module of the function's own is no pipeline that could be asked

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        from datasets import Image

        stored = rows.cast_column("image", Image(decode=False))  # `datasets` decodes fewer of them than this package
        batches = (stored[start : start + IMAGES_AT_ONCE]["image"] for start in range(0, len(rows), IMAGES_AT_ONCE))
        decoded = ([decode(image["bytes"], name_of(image)) for image in images] for images in batches)
        return [best["label"] for images in decoded for best, *_ in use(images, batch_size=IMAGES_AT_ONCE)]

    def card(self, labels: tuple[str, ...]) -> str:
        names = "\n".join(f"- {name}" for name in labels)
        text = f"---\npipeline_tag: image-classification\n---\n\nA classifier of images, with the classes\n\n{names}\n"
        return text if self.task.model is not None else f"{text}\n{OF_A_MODULE}\n"
