"""Runs of text classification for tests, whose fields may be given side by side."""

from train_func.fields import field_names
from train_func.run import Run
from train_func.tasks import TextClassification

OF_TASK = field_names(TextClassification)


def a_run(**fields) -> Run:
    """Each field goes where it belongs: to the Run or to its task."""
    task = {"model": "m", "dataset": "d"} | {name: fields[name] for name in fields if name in OF_TASK}
    return Run(
        task=TextClassification(**task), **{name: value for name, value in fields.items() if name not in OF_TASK}
    )
