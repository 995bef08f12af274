"""Functions whose ranks say where they are: two that save their state, and one that does not."""

STEPS = 28  # 101 rows in batches of 16, four times

_TELLS = """
def tell(words):
    import os
    os.write(1, f"\\n{words}\\n".encode())  # a line of its own, whatever another thread prints meanwhile

def train_func(parameters):
    tell("begun")
"""

AWARE = (
    _TELLS
    + """
    import time
    from transformers import TrainerCallback
    from tests.distributed import small
    from train_func.worker import Session, Trainer

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            tell(f"step {state.global_step} is done at {time.monotonic()}")
            time.sleep(0.03)

    class Evaluates(Trainer):
        def evaluate(self, *args, **kwargs):
            tell("evaluating")
            time.sleep(0.1)
            return super().evaluate(*args, **kwargs)

    with Session(parameters) as session:
        tells = {"eval_strategy": "epoch", "logging_strategy": "steps", "logging_steps": 1}
        trainer = small.trainer_of(session, Tells(), kind=Evaluates, dropout=0.1, eval_rows=40, **tells)
        trainer.train()
        tell("publishing")
        losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        session.publish(trainer)
    return {"losses": losses, "rows": [[of.num_rows, of.num_once] for of in trainer.coverage]}
"""
)

OWN_LOOP = (
    _TELLS
    + """
    import time
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from tests.distributed import small
    from train_func.worker import Session

    with Session(parameters) as session:
        plan = small.part_of(session)
        model = small.model(dropout=0.1)
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        session.checkpoint(parallel, optimizer)
        for step in session.steps(plan, small.collate):
            for batch, weight in step:
                (weight * parallel(**batch).loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            tell(f"step {step.number} is done at {time.monotonic()}")
            time.sleep(0.03)
        tell("publishing")
        time.sleep(0.2)
        session.publish(model)
    return {"sum": sum(of.sum().item() for of in model.parameters())}
"""
)

UNAWARE = (
    _TELLS
    + f"""
    import time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from tests.distributed import small

    dist.init_process_group("gloo")
    model = DistributedDataParallel(small.model(dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows, losses = list(small.rows(101)), []
    torch.manual_seed(dist.get_rank())
    for step in range(1, {STEPS} + 1):
        loss = model(**small.collate(rows[step % 7 :: 7])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        tell(f"step {{step}} is done at {{time.monotonic()}}")
        time.sleep(0.03)
    tell("publishing")
    return {{"losses": losses}}
"""
)
