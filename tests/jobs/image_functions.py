"""Functions that train on images, with a module of their own; each is shipped from this file."""

import torch
from huggingface_hub import PyTorchModelHubMixin


class Net(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self, num_classes):
        super().__init__()
        layers = []
        for before, after in ((3, 12), (12, 24)):
            layers += [torch.nn.Conv2d(before, after, 3, stride=2), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
        pool = torch.nn.AdaptiveAvgPool2d(1)
        self.body = torch.nn.Sequential(*layers, pool, torch.nn.Flatten(), torch.nn.Linear(24, num_classes))

    def forward(self, pixel_values, labels=None):
        logits = self.body(pixel_values)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def trains_a_module(parameters):
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        _, processor = session.model()
        train, held_out = session.data(processor)
        torch.manual_seed(session.run.seed)
        trainer = Trainer(
            model=Net(num_classes=len(session.labels)),
            args=TrainingArguments(**session.arguments()),
            train_dataset=split_dataset_by_node(session.plan(train), session.rank, session.world_size),
            eval_dataset=held_out,
            processing_class=processor,
        )
        trainer.train()
        session.publish(trainer)
