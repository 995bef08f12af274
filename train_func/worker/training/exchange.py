"""The exchange of gradients: what DDP leaves undone without a word until the next step, found in the step itself."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train_func.counted import counted
from train_func.errors import InvalidInput


def check_gradients_exchanged(model: nn.Module) -> None:
    """After the last backward pass of a step: the gradients of all parameters are those of all ranks.

    DDP waits for every parameter's gradient before it hands on those of its bucket. Where one never comes, it raises in
    the next step's forward pass; this step, and training when it is its last, would end with different weights on each
    rank.

    Raises:
        InvalidInput: (cause "code") naming the parameters that the loss does not depend on.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    try:
        model._check_reducer_finalized()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise _unused(model.module) from error


def _unused(model: nn.Module) -> InvalidInput:
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    named = f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
    how_many = counted(len(names), "parameter") if names else "some parameters"
    return InvalidInput(
        f"The loss does not depend on {how_many} of {type(model).__name__}{named}. The ranks "
        "exchange the gradients of all parameters and wait for those that never come. Pass "
        "ddp_find_unused_parameters=True to TrainingArguments, which looks for them in every step; or, when they are "
        "never used, take them out of training with parameter.requires_grad_(False)",
        cause="code",
    )
