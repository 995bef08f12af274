"""How much a micro-batch counts in its step."""

import torch
from torch import nn

from tests.distributed import small
from train_func.worker import Trainer
from train_func.worker.training.plan import facts_of


class Rows:
    """A batch in a form of the user's own, such as a graph library's, in which no tensor is found."""

    def __init__(self, features):
        self.tensors = small.collate(features)


class TakesRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small.model()

    def forward(self, rows):
        return self.inner(**rows.tensors)


def test_rows_in_a_form_of_the_users_own_train_the_same_model_as_tensors(tmp_path):
    plan = small.plan(small.rows(40), 16, 4, 4)

    def trained(model, collate):
        others = {"optim": "sgd", "learning_rate": 0.1, "remove_unused_columns": False}
        arguments = small.arguments(tmp_path, facts_of(plan), **others)
        Trainer(model=model, args=arguments, data_collator=collate, train_dataset=plan).train()
        return model

    expected = trained(small.model(), small.collate).state_dict()
    found = trained(TakesRows(), lambda features: {"rows": Rows(features)}).inner.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
