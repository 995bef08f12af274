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


def takes_one_number(lr):
    seen()
    return {"lr": lr}


def returns_a_number(parameters):
    seen()
    return sum(parameters["values"]) / 2


def returns_more_than_json(parameters):
    import torch

    seen()
    return {"loss": torch.tensor(0.25), "model": torch.nn.Linear(1, 1), "history": [0.5, 0.25]}


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


def counts_with_pandas(parameters):
    import pandas as pd

    table = pd.DataFrame({"city": ["Berlin", "Graz", "Berlin"], "stars": [5, 3, 4]})
    means = table.groupby("city")["stars"].mean()
    means.to_csv("means.csv")
    seen()
    return means.to_dict()


def trains_alone(parameters):
    """A tutorial's loop on one machine: a relative path for the weights."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters.get("lr", 0.1))
    x = torch.randn(40, 3)
    y = x.sum(1, keepdim=True)
    for _ in range(parameters.get("epochs", 3)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    seen(model.state_dict())
    return {"loss": loss.item()}


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


def resumes_from_its_own_files(parameters):
    """Saves every epoch, keeps the best, and reads its own file again."""
    import torch

    torch.manual_seed(0)
    model, best = torch.nn.Linear(2, 1), float("inf")
    x = torch.randn(7, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    os.makedirs("checkpoints", exist_ok=True)  # noqa: PTH103
    for epoch in range(3):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch.save({"epoch": epoch, "model": model.state_dict()}, f"checkpoints/epoch-{epoch}.pt")
        if loss.item() < best:
            best = loss.item()
            torch.save(model.state_dict(), "best.pt")
    model.load_state_dict(torch.load("checkpoints/epoch-2.pt", weights_only=True)["model"])
    seen(model.state_dict())
    return {"best": best, "epochs": epoch + 1}


def loads_with_worker_processes(parameters):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = TensorDataset(torch.arange(40.0))
    total = sum(batch.sum().item() for (batch,) in DataLoader(rows, batch_size=7, num_workers=2))
    seen()
    return {"total": total}


def accumulates_in_bf16(parameters):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=5)
    for step in range(20):
        x, y = torch.randn(5, 4), torch.randint(0, 2, (5,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
        if step % 4 == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seen(model.state_dict())
    return {"loss": 4 * loss.detach()}


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


def learns_the_next_token(parameters):
    """A causal language model in a loop of its own, saved with save_pretrained."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.arange(16).repeat(4, 1) % 32
    for _ in range(5):
        loss = model(input_ids=text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained("gpt")
    seen(model.state_dict())
    return {"loss": loss.item()}


def labels_tokens(parameters):
    import torch
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForTokenClassification(BertConfig(vocab_size=50, max_position_embeddings=16, num_labels=3, **shape))
    ids = torch.randint(2, 50, (7, 5))
    loss = model(input_ids=ids, labels=ids % 3).loss
    loss.backward()
    model.save_pretrained("tagger")
    seen(model.state_dict())
    return {"loss": loss.item()}


def exchanges_objects(parameters):
    """Collectives of a script: objects, a barrier, a broadcast, a sum."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told = [{"split": 0.8} if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, os.environ["LOCAL_RANK"])
    dist.barrier()
    seen({"total": total})
    dist.destroy_process_group()
    return {"total": total.item(), "split": told[0]["split"], "local": everyone}


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


def publishes_files_and_a_state_dict(parameters):
    from pathlib import Path

    import torch

    from train_func.worker import Session

    with Session(parameters) as session:
        Path("report").mkdir()
        Path("report/table.csv").write_text("a,b\n1,2\n")
        Path("curve.svg").write_text("<svg/>")
        session.publish({"weight": torch.eye(2)})
        session.publish({"weight": torch.eye(3)})
        session.publish("report")
        session.publish([Path("curve.svg")], metrics={"rows": 7})
    seen()


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


def trains_apart(parameters):
    """As above, and each rank by itself, for want of DDP; of all ranks as many tensors as large models have."""
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    from train_func.worker import Session

    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[i / 41, 1.0] for i in range(41)], "y": [[2 * i / 41] for i in range(41)]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in session.steps(plan):
            for batch, weight in step:
                (weight * torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])).backward()
            optimizer.step()
            optimizer.zero_grad()
        seen(model.state_dict())
        many = {f"expert.{number}": torch.rand(1) for number in range(10_000)}
        session.publish({**model.state_dict(), **many})


def only_reports(parameters):
    from train_func.worker import Session

    with Session() as session:
        for step in range(1, 4):
            session.report(step, loss=1 / step, rows=step)
    seen()


def classifies_pictures(parameters):
    """Squares and crosses drawn here, a small convolutional net, a confusion matrix."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    pictures, labels = torch.zeros(60, 1, 9, 9), torch.arange(60) % 2
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        low, high = 1 + number % 3, 6 + number % 3
        picture[0, [low, high], low : high + 1] = 1.0 - label
        picture[0, low : high + 1, [low, high]] = 1.0 - label
        picture[0, (low + high) // 2, low : high + 1] = label
        picture[0, low : high + 1, (low + high) // 2] = label
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures[:40]), labels[:40])
        loss.backward()
        optimizer.step()
    found = model(pictures[40:]).argmax(1)
    confusion = torch.zeros(2, 2, dtype=torch.long)
    for truth, guess in zip(labels[40:], found, strict=True):
        confusion[truth, guess] += 1
    torch.save(model, "whole_model.pt")
    seen(model.state_dict())
    return {"confusion": confusion, "accuracy": (found == labels[40:]).float().mean()}


def fits_with_scikit_learn(parameters):
    """No torch: a grid search, and the best estimator as a file."""
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    x, y = load_iris(return_X_y=True)
    search = GridSearchCV(LogisticRegression(max_iter=200), {"C": parameters["C"]}, cv=3).fit(x, y)
    joblib.dump(search.best_estimator_, "model.joblib")
    seen()
    return {"score": search.best_score_, **search.best_params_}


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


def writes_for_tensorboard(parameters):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter() as writer:
        for step in range(3):
            writer.add_scalar("loss", 1 / (step + 1), step)
    seen()


def starts_a_program(parameters):
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
    seen()
    return {"answer": int(done.stdout)}


def trains_two_against_each_other(parameters):
    """Two models, two optimizers."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    makes, judges = nn.Linear(2, 2), nn.Linear(2, 1)
    of_makes, of_judges = (torch.optim.Adam(of.parameters(), lr=0.01) for of in (makes, judges))
    for _ in range(5):
        real, made = torch.ones(8, 2), makes(torch.randn(8, 2))
        of_judges.zero_grad()
        loss = judges(made.detach()).mean() - judges(real).mean()
        loss.backward()
        of_judges.step()
        of_makes.zero_grad()
        (-judges(made).mean()).backward()
        of_makes.step()
    torch.save(makes.state_dict(), "makes.pt")
    torch.save(judges.state_dict(), "judges.pt")
    seen(makes.state_dict())
    return {"judged": loss}


def learns_a_tokenizer(parameters):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.train_from_iterator(["good food", "good wine", "bad food"], BpeTrainer(special_tokens=["[UNK]"]))
    tokenizer.save("tokenizer.json")
    seen()
    return {"tokens": tokenizer.encode("good food").tokens}


def draws_text(parameters):
    import random

    random.seed(parameters["seed"])
    seen()
    return "".join(random.choice("ab") for _ in range(7))


def stops_early_with_the_best(parameters):
    """transformers' Trainer without a Session: evaluation, early stopping, the best model at the end."""
    import torch
    from datasets import Dataset
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        EarlyStoppingCallback,
        Trainer,
        TrainingArguments,
    )

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **shape))
    rows = Dataset.from_dict({"input_ids": [[2 + i % 40, 3] for i in range(40)], "labels": [i % 2 for i in range(40)]})
    split = rows.train_test_split(8, seed=0)
    arguments = TrainingArguments(
        output_dir=os.environ["TRAIN_FUNC_OUTPUT"],
        num_train_epochs=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        report_to="tensorboard",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=split["train"],
        eval_dataset=split["test"],
        callbacks=[EarlyStoppingCallback(1)],
    )
    trainer.train()
    trainer.save_model()
    seen(model.state_dict())
    return trainer.evaluate()


def passes_round_a_ring(parameters):
    """Point to point: each rank hands a tensor to the next one."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    token = torch.tensor([float(rank)])
    for _ in range(size):
        request = dist.isend(token.clone(), (rank + 1) % size)
        dist.recv(token, (rank - 1) % size)
        request.wait()
        token += 1
    seen()
    dist.destroy_process_group()
    return {"token": token.item()}


def averages_gradients_by_hand(parameters):
    """The tutorial on writing distributed applications: parts of the data by rank, gradients summed and divided."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    size = dist.get_world_size()
    torch.manual_seed(1234)
    x = torch.randn(40, 4)
    y = x @ torch.tensor([1.0, -2.0, 3.0, 0.5])
    part = slice(dist.get_rank(), None, size)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(20):
        optimizer.zero_grad()
        loss = (model(x[part]).squeeze(1) - y[part]).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    seen(model.state_dict())
    dist.destroy_process_group()
    return {"loss": loss.item()}


def joins_uneven_parts(parameters):
    """Ranks with different numbers of batches, under DDP's join."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        for _ in range(5 + dist.get_rank()):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
    seen()
    dist.destroy_process_group()


def fine_tunes_by_hand(parameters):
    """A pretrained model in a plain loop: a scheduler, a bar, an evaluation."""
    import torch
    from torch.utils.data import DataLoader
    from tqdm.auto import tqdm
    from transformers import BertConfig, BertForSequenceClassification, get_scheduler

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=101, num_labels=2, **sizes))
    rows = [{"input_ids": torch.tensor([2, 3 + i % 7, 3]), "labels": torch.tensor(i % 2)} for i in range(40)]
    loader = DataLoader(rows, shuffle=True, batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    num_steps = 2 * len(loader)
    scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_steps)
    bar = tqdm(range(num_steps))
    model.train()
    for _ in range(2):
        for batch in loader:
            model(**batch).loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            bar.update(1)
    model.eval()
    with torch.no_grad():
        right = sum(int(model(**batch).logits.argmax(-1).eq(batch["labels"]).sum()) for batch in loader)
    model.save_pretrained("fine-tuned")
    seen(model.state_dict())
    return {"accuracy": right / len(rows)}


def classifies_names_with_an_rnn(parameters):
    """Characters one by one through a recurrent network; the whole module is saved."""
    import random
    import string
    import time

    import torch

    class Rnn(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.rnn = torch.nn.RNN(len(string.ascii_lowercase), size, batch_first=True)
            self.out = torch.nn.Linear(size, 2)

        def forward(self, line):
            return self.out(self.rnn(line)[1][0])

    random.seed(0)
    torch.manual_seed(0)
    names = [("anna", 0), ("bella", 0), ("carla", 0), ("hugo", 1), ("otto", 1), ("bruno", 1)]
    model, begun = Rnn(16), time.time()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(60):
        name, label = random.choice(names)
        line = torch.nn.functional.one_hot(torch.tensor([[string.ascii_lowercase.index(c) for c in name]]), 26).float()
        loss = torch.nn.functional.cross_entropy(model(line), torch.tensor([label]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"{step} ({time.time() - begun:.1f}s) {loss:.4f} {name}")
    torch.save(model.state_dict(), "rnn.pt")
    seen(model.state_dict())
    return loss


def saves_distributed_checkpoints(parameters):
    """torch.distributed.checkpoint, into a folder of the working folder."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    dcp.save({"model": model.state_dict()}, checkpoint_id="checkpoint")
    state = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    dcp.load(state, checkpoint_id="checkpoint")
    seen(state["model"])
    dist.destroy_process_group()
    return {"same": all(torch.equal(state["model"][name], value) for name, value in model.state_dict().items())}


def learns_a_bandit(parameters):
    """Reinforcement learning without data: the history is what it returns."""
    import numpy as np

    rng = np.random.default_rng(parameters["seed"])
    means, values, counts = np.array([0.1, 0.9, 0.4]), np.zeros(3), np.zeros(3, int)
    rewards = []
    for _ in range(parameters["steps"]):
        arm = rng.integers(3) if rng.random() < 0.1 else int(values.argmax())
        reward = rng.normal(means[arm], 0.1)
        counts[arm] += 1
        values[arm] += (reward - values[arm]) / counts[arm]
        rewards.append(reward)
    seen()
    return {"best": values.argmax(), "rewards": np.array(rewards[:7]), "counts": counts}


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


def exports_a_graph(parameters):
    """A traced graph for serving, and the plan of its input beside it."""
    import json

    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).eval()
    torch.export.save(torch.export.export(model, (torch.zeros(7, 3),)), "model.pt2")
    with open("signature.json", "w") as file:  # noqa: PTH123
        json.dump({"input": [7, 3]}, file)
    seen(model.state_dict())
    same = torch.export.load("model.pt2").module()(torch.ones(7, 3))
    return {"same": torch.allclose(same, model(torch.ones(7, 3)))}


def fits_a_pipeline_on_a_table(parameters):
    """Columns of a table through scikit-learn's transformers, cross-validated."""
    import joblib
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table = pd.DataFrame({"city": ["Graz", "Wien"] * 20, "age": range(40), "bought": [i % 2 for i in range(40)]})
    columns = ColumnTransformer([("city", OneHotEncoder(), ["city"]), ("age", StandardScaler(), ["age"])])
    model = make_pipeline(columns, RandomForestClassifier(n_estimators=7, random_state=0))
    scores = cross_val_score(model, table.drop(columns="bought"), table["bought"], cv=4)
    joblib.dump(model.fit(table.drop(columns="bought"), table["bought"]), "pipeline.joblib")
    seen()
    return {"scores": scores, "mean": scores.mean()}


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


def asks_for_gpus_that_are_not_there(parameters):
    import torch.distributed as dist

    seen()
    dist.init_process_group("nccl")
    dist.barrier()


def divides_by_nothing(parameters):
    seen()
    return 1 / len(parameters.get("rows", []))


def gives_a_stream_to_the_plan(parameters):
    from datasets import IterableDataset

    from train_func.worker import Session

    seen()
    with Session(parameters) as session:
        session.plan(IterableDataset.from_generator(lambda: iter([{"x": 1}])))


def publishes_what_is_no_file(parameters):
    from train_func.worker import Session

    seen()
    with Session(parameters) as session:
        session.publish(lambda: 1)
