"""Our Trainer does what transformers' would with a method, a parameter or an argument, or refuses it by its name."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from tests.distributed import small
from tests.trainer_interface import OBEYED_METHODS
from train_func.errors import InvalidInput
from train_func.worker import Trainer
from train_func.worker.training.arguments import REFUSED_ARGUMENTS, REFUSED_METHODS
from train_func.worker.training.plan import facts_of

PARTS = ("model", "args", "data_collator", "train_dataset", "eval_dataset")
# Asked only where a model, an optimizer or a device needs it, by transformers' own Trainer too.
RARE = {"_mixed_mesh_grad_norm", "_sync_replicated_trainable_parameters"}
DEFAULTS = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
OTHER_VALUES = {
    "accelerator_config": AcceleratorConfig(split_batches=True),
    "data_seed": 7,
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "fsdp": "full_shard",
    "include_num_input_tokens_seen": "all",
    "max_steps": 5,
    "save_total_limit": 3,
    "train_sampling_strategy": "sequential",
    "parallelism_config": object(),
    "resume_from_checkpoint": "checkpoint-3",
}


def trainer_of(folder, kind=Trainer, arguments=(), changes=(), **others):
    """``changes``: to the arguments behind their own checks, for values that need what is not installed here."""
    plan = small.plan(small.rows(40), 16, 4, 4, num_epochs=2)
    args = small.arguments(folder, facts_of(plan), **dict(arguments))
    for name, value in dict(changes).items():
        setattr(args, name, value)
    given = {"model": small.model(), "eval_dataset": small.rows(21, seed=1), "train_dataset": plan, **others}
    return kind(args=args, data_collator=small.collate, **given)


def refused(action):
    with pytest.raises(InvalidInput) as error:
        action()
    assert error.value.cause == "code"
    return str(error.value)


@pytest.mark.parametrize("method", sorted(REFUSED_METHODS))
def test_a_method_that_would_never_be_called_is_refused_by_name(tmp_path, method):
    own = type("Own", (Trainer,), {method: lambda self, *args, **others: None})
    assert f"Own.{method}" in refused(lambda: trainer_of(tmp_path, own))


def test_a_trainer_takes_its_parts_in_the_order_in_which_transformers_does(tmp_path):
    named = trainer_of(tmp_path)
    in_order = Trainer(*(getattr(named, name) for name in PARTS))
    assert [getattr(in_order, name) for name in PARTS] == [getattr(named, name) for name in PARTS]


def test_a_method_of_a_class_beside_ours_and_one_put_into_a_trainer_are_refused_too(tmp_path):
    class Balanced(transformers.Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Both(Trainer, Balanced):
        pass

    assert "Both._get_train_sampler" in refused(lambda: trainer_of(tmp_path, Both))
    trainer = trainer_of(tmp_path)
    trainer.get_eval_dataloader = lambda rows: None
    assert "get_eval_dataloader" in refused(trainer.train)


@pytest.mark.parametrize("argument", sorted(REFUSED_ARGUMENTS))
def test_an_argument_that_would_not_be_used_is_refused_by_name(tmp_path, argument):
    default = DEFAULTS[argument]
    other = not default if isinstance(default, bool) else OTHER_VALUES[argument]
    assert f"{argument}=" in refused(lambda: trainer_of(tmp_path, changes={argument: other}))


@pytest.mark.parametrize(
    "arguments",
    [
        {"ddp_timeout": 7200},
        {"skip_memory_metrics": False},
        {"data_seed": 5, "seed": 5},
        {"fsdp": ""},
        {"resume_from_checkpoint": True},
    ],
    ids=str,
)
def test_arguments_that_ask_for_what_is_done_in_any_case_or_change_nothing_are_taken(tmp_path, arguments):
    trainer = trainer_of(tmp_path, arguments=arguments)
    trainer.train()
    assert [coverage.num_once for coverage in trainer.coverage] == [40, 40]
    assert "eval_loss" in trainer.evaluate()


def test_all_that_is_refused_is_named_at_once_and_before_transformers_acts_on_it(tmp_path):
    """push_to_hub makes a repository."""
    own = type("Own", (Trainer,), {"evaluation_loop": lambda self: None})
    changes = {"push_to_hub": True, "data_seed": 7}
    message = refused(lambda: trainer_of(tmp_path, own, changes=changes, model=None, model_init=small.model))
    assert [name for name in ("Own.evaluation_loop", "push_to_hub=", "data_seed=7", "model_init") if name in message]


def test_what_the_plan_decides_is_refused_where_it_was_chosen_otherwise(tmp_path):
    chosen = {"seed": 7, "per_device_train_batch_size": 3, "num_train_epochs": 3, "gradient_accumulation_steps": 3}
    trainer = trainer_of(tmp_path, changes=chosen)
    message = refused(trainer.train)
    assert [name for name, value in chosen.items() if f"{name}={value}" not in message] == []
    assert trainer.state.global_step == 0
    trainer_of(tmp_path, arguments={"seed": 5, "per_device_train_batch_size": 4}).train()


def test_a_search_over_several_trainings_and_an_end_of_the_process_group_are_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    assert "hyperparameter_search" in refused(lambda: trainer.hyperparameter_search(n_trials=2))
    assert "hyperparameter_search" in refused(lambda: trainer.train(trial={"learning_rate": 1}))
    assert "end" in refused(trainer.end)


def test_every_method_that_counts_as_obeyed_is_called(tmp_path):
    called = set()

    def recorded(name):
        def method(self, *args, **others):
            called.add(name)
            return getattr(super(own, self), name)(*args, **others)

        return method

    own = type("Own", (Trainer,), {name: recorded(name) for name in OBEYED_METHODS})
    arguments = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
    }
    trainer = trainer_of(tmp_path, own, arguments)
    trainer.train()
    trainer.evaluate()
    trainer.predict(small.rows(7, seed=2))
    trainer.pop_callback(transformers.TrainerCallback)
    assert called ^ OBEYED_METHODS == RARE


def test_metrics_are_given_the_inputs_labels_and_losses_of_every_row_in_order(tmp_path):
    seen = []

    def compute_metrics(prediction):
        seen.append(prediction)
        return {}

    arguments = {"include_for_metrics": ["inputs", "loss"], "per_device_eval_batch_size": 4}
    trainer = trainer_of(tmp_path, arguments=arguments, compute_metrics=compute_metrics)
    loss = trainer.evaluate()["eval_loss"]
    (prediction,) = seen
    wanted = [row["input_ids"] for row in small.rows(21, seed=1)]
    assert [[token for token in row if token > 0] for row in prediction.inputs.tolist()] == wanted
    assert prediction.label_ids.tolist() == small.rows(21, seed=1)["label"][:]
    assert prediction.losses.shape == (21,)
    assert np.mean(prediction.losses) == pytest.approx(loss)


def test_processes_that_load_are_those_that_the_arguments_ask_for(tmp_path):
    arguments = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3}
    trainer = trainer_of(tmp_path, arguments={**arguments, "dataloader_multiprocessing_context": "fork"})
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (1, True, 3)
    assert loader.multiprocessing_context.get_start_method() == "fork"
    trainer.train()
    assert [coverage.num_once for coverage in trainer.coverage] == [40, 40]


def test_smoothed_labels_are_trained_on_and_not_measured_on(tmp_path):
    """The smoothing changes the training, and no loss that is compared with another one's."""
    found = {}
    for factor in (0.0, 0.3):
        trainer = trainer_of(tmp_path, arguments={"label_smoothing_factor": factor, "seed": 5})
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        found[factor] = before, [*trainer.model.parameters()][-1].tolist()
    assert found[0.0][0] == found[0.3][0]
    assert found[0.0][1] != found[0.3][1]
