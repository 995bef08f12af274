"""What of transformers is private and used all the same: a new version of it is read for these names first."""

import ast
import inspect
from pathlib import Path

import transformers
from accelerate.state import GradientState

from train_func.worker.training import trainer as module
from train_func.worker.training.trainer import Trainer

REPLACED = {"_get_num_items_in_batch", "_inner_training_loop"}
CALLED = {
    "_clip_grad_norm",
    "_determine_best_metric",
    "_evaluate",
    "_get_collator_with_removed_columns",
    "_get_grad_norm",
    "_get_learning_rate",
    "_init_training_state",
    "_loss_shifts_labels",
    "_memory_tracker",
    "_prepare_for_training",
    "_prepare_inputs",
}


def private_names_in(path):
    nodes = ast.walk(ast.parse(Path(path).read_text()))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_the_private_methods_that_are_replaced_are_these():
    ours = {name for name in vars(Trainer) if name.startswith("_") and not name.startswith(("__", "_abc_"))}
    assert {name for name in ours if hasattr(transformers.Trainer, name)} == REPLACED


def test_the_private_names_that_are_used_are_these():
    theirs = set(vars(transformers.Trainer)) | private_names_in(inspect.getsourcefile(transformers.Trainer))
    own = {name for name in vars(Trainer) if not hasattr(transformers.Trainer, name)}
    assert (private_names_in(module.__file__) & theirs) - own - REPLACED == CALLED | {"_set_sync_gradients"}
    assert hasattr(GradientState, "_set_sync_gradients")
