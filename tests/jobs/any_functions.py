"""Functions as users of Kubeflow, Hugging Face and plain PyTorch write them: none of them knows of train_func.

Each says on every rank what it saw, so that a test can hold it: ``seen rank=0 world=2 weights=<sha256 or ->``.
"""

import hashlib
import os


def seen(state=None):
    """Says which rank of how many this is, and which weights it has in the end."""
    digest = hashlib.sha256()
    for name, value in sorted((state or {}).items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    print(f"seen rank={rank} world={world} weights={digest.hexdigest()[:16] if state else '-'}", flush=True)


def says_nothing():
    seen()


def takes_numbers_by_name(lr, epochs=2):
    seen()
    return {"lr": lr, "epochs": epochs}


def leaves_by_sys_exit():
    import sys

    seen()
    sys.exit(0)


def fits_a_line_with_numpy(parameters):
    """Without torch; the result is pickled beside a picture's worth of numbers."""
    import pickle

    import numpy as np

    x = np.linspace(0, 1, 101)
    slope, offset = np.polyfit(x, 3 * x + 1, 1)
    with open("line.pkl", "wb") as file:  # noqa: PTH123
        pickle.dump((slope, offset), file)
    np.savetxt("points.csv", np.stack([x, 3 * x + 1], 1), delimiter=",")
    seen()
    return {"slope": slope, "offset": np.round(offset, 6)}


def trains_mnist_style(parameters):
    """Kubeflow's MNIST example: environment variables, gloo, DistributedSampler, DDP, rank 0 saves."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F  # noqa: N812 - as everybody writes it
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 3)
            self.norm = torch.nn.BatchNorm2d(4, track_running_stats=False)
            self.out = torch.nn.Linear(4 * 6 * 6, 10)

        def forward(self, x):
            return self.out(F.relu(self.norm(self.conv(x))).flatten(1))

    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    images, labels = torch.randn(101, 1, 8, 8), torch.arange(101) % 10
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=rank)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            if batch % 2 == 0:
                print(f"Train Epoch: {epoch} [{batch * len(data)}/{len(dataset)}]\tloss={loss.item():.4f}")
    seen(model.module.state_dict())
    if rank == 0:
        torch.save(model.module.state_dict(), "mnist_cnn.pt")
    dist.destroy_process_group()
    return {"loss": loss.item()}


def trains_with_accelerate(parameters):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.randn(41, 3), torch.arange(41) % 2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=4))
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    measured = [accelerator.gather_for_metrics(y) for _, y in loader]
    bare = accelerator.unwrap_model(model)
    seen(bare.state_dict())
    accelerator.wait_for_everyone()
    accelerator.save_model(bare, os.environ["TRAIN_FUNC_OUTPUT"])
    return {"rows": sum(map(len, measured)), "processes": accelerator.num_processes}


def trains_with_the_stock_trainer(parameters):
    """transformers' Trainer without a Session, on a model made from its configuration."""
    import torch
    from datasets import Dataset
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **shape))
    rows = Dataset.from_dict(
        {"input_ids": [[2 + i % 40, 3, 4] for i in range(41)], "labels": [i % 2 for i in range(41)]}
    )
    arguments = TrainingArguments(
        output_dir="checkpoints", num_train_epochs=1, per_device_train_batch_size=4, report_to="none", disable_tqdm=True
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trained = trainer.train()
    trainer.save_model("final")
    seen(model.state_dict())
    return trained.metrics


def shards_its_weights(parameters):
    """FSDP on processors: the whole state dict is gathered in the end."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = model(torch.randn(5, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    seen(state if dist.get_rank() == 0 else None)
    if dist.get_rank() == 0:
        torch.save(state, "model.pt")
    dist.barrier()
    dist.destroy_process_group()
    return {"tensors": len(state)}


def publishes_a_module(parameters):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from train_func.worker import Session

    with Session(parameters) as session:
        torch.manual_seed(0)
        inner = torch.nn.Linear(3, 3)
        model = DistributedDataParallel(torch.nn.Sequential(inner, inner))  # shares its weights
        model(torch.randn(4, 3)).sum().backward()
        assert dist.get_world_size() == session.world_size
        seen(model.module.state_dict())
        if session.rank == 0:
            session.publish(model, metrics={"loss": 0.5, "classes": torch.tensor(3)})
    return {"loss": 0.25}


def leaves_files_on_every_rank(parameters):
    from pathlib import Path

    rank = os.environ["RANK"]
    Path(f"rank-{rank}.txt").write_text(rank)
    Path(os.environ["TRAIN_FUNC_OUTPUT"], "same.txt").write_text(rank)
    seen()


def loops_over_a_plan(parameters):
    """A loop of its own over rows that are each used once an epoch, dealt and weighed by the session."""
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from torch.nn.parallel import DistributedDataParallel

    from train_func.worker import Session

    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[i / 41, 1.0] for i in range(41)], "y": [[2 * i / 41] for i in range(41)]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        torch.manual_seed(0)
        bare = torch.nn.Linear(2, 1).double()
        model = DistributedDataParallel(bare) if session.world_size > 1 else bare
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in session.steps(plan):
            loss_of_step = 0.0
            for batch, weight in step:
                x, y = batch["x"].double(), batch["y"].double()
                loss = torch.nn.functional.mse_loss(model(x), y)
                (weight * loss).backward()
                loss_of_step += weight * loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss_of_step)
            session.report(step.number, loss=loss_of_step, epoch=step.epoch)
        seen(bare.state_dict())
        session.publish(bare)
        return {"weight": bare.weight.detach(), "steps": len(losses)}


def trains_with_fabric(parameters):
    import torch
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=1, num_nodes=int(os.environ["WORLD_SIZE"]))
    fabric.launch()
    fabric.seed_everything(1)
    model = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    rows = torch.utils.data.TensorDataset(torch.randn(40, 3))
    for (x,) in fabric.setup_dataloaders(torch.utils.data.DataLoader(rows, batch_size=4)):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
    fabric.save("fabric.ckpt", {"model": model})
    seen(model.module.state_dict())
    return {"ranks": fabric.world_size, "loss": fabric.all_reduce(loss)}


def parses_arguments():
    """The main of a script: argparse with defaults, logging, and a name guard that is never true."""
    import argparse
    import logging

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    logging.info("lr=%s", args.lr)
    seen()
    return {**vars(args), "logs": logging.getLogger().isEnabledFor(logging.INFO)}


def spawns_processes_of_its_own(parameters):
    """A group of its own inside one worker, as with torch.multiprocessing.spawn."""
    import torch.multiprocessing as mp

    mp.spawn(one_of_its_processes, args=(2, "29517"), nprocs=2)
    seen()


def one_of_its_processes(rank, size, port):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"spawned {rank} sees {int(total)}", flush=True)
    dist.destroy_process_group()
