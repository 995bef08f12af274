"""What of other libraries is replaced though it is private: a new version of theirs is read for these names first."""

import transformers

from train_func.worker.training.resuming import ResumingTrainer
from train_func.worker.training.trainer import Trainer

OF_TRANSFORMERS = {
    "_build_accelerator_args",
    "_evaluate",
    "_get_num_items_in_batch",
    "_load_best_model",
    "_maybe_log_save_evaluate",
    "_run_epoch",
}
OF_RESUMING = {
    "_evaluate",
    "_init_training_state",
    "_load_best_model",
    "_load_rng_state",
    "_prepare_for_training",
    "_run_epoch",
    "_save_checkpoint",
}


def private_names(ours, theirs):
    names = {name for name in vars(ours) if name.startswith("_") and not name.startswith(("__", "_abc_"))}
    return {name for name in names if hasattr(theirs, name)}


def test_the_private_methods_that_are_replaced_are_these():
    assert private_names(Trainer, transformers.Trainer) == OF_TRANSFORMERS
    assert private_names(ResumingTrainer, transformers.Trainer) == OF_RESUMING
