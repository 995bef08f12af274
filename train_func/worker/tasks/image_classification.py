"""Image classification: images with one class each, and a model with a head for them or a module of the function's."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.layout import LABELS, SOURCE
from train_func.storage import Store
from train_func.tasks import ImageClassification
from train_func.worker.inputs.model import FoundModel, find_model
from train_func.worker.inputs.model_folder import ModelUse
from train_func.worker.tasks.accuracy import Accuracy
from train_func.worker.tasks.image_decoding import decode
from train_func.worker.tasks.image_rows import split_image_rows
from train_func.worker.tasks.kept_images import name_of
from train_func.worker.tasks.protocol import Findings, Metric, Rows
from train_func.worker.tasks.sources import HELD_OUT, TRAINING
from train_func.worker.tasks.targets import majority_baseline

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

        from train_func.worker.tasks.image_batches import COLUMN

        return rows.cast_column("image", Image(decode=False)).rename_column("image", COLUMN)

    def collator(self, processor: Any, *, training: bool) -> Any:
        from train_func.worker.tasks.image_batches import ImageCollator

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
