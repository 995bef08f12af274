"""A Llama 3.2 1B, of random weights, is tuned by adapters on one rank in bfloat16: a step, and the memory it needs."""

import json
import subprocess
import sys

import pytest

from tests.mounts import ROOT

MADE = """
import sys, torch
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
from tests.tiny_llama import write_tiny_llama
folder = Path(write_tiny_llama(sys.argv[1]))
for weights in folder.glob("*.safetensors"):
    weights.unlink()
config = LlamaConfig(
    vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8, head_dim=64, max_position_embeddings=131_072, tie_word_embeddings=True, rms_norm_eps=1e-5,
    bos_token_id=None, eos_token_id=0, pad_token_id=1, dtype=torch.bfloat16,
)
torch.set_default_dtype(torch.bfloat16)
LlamaForCausalLM(config).save_pretrained(folder)
"""
TRAINED = """
import json, sys, time
from pathlib import Path
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments
from tests.tiny_llama import write_questions
from train_func.tasks import CausalLM
from train_func.worker import Trainer
from train_func.worker.tasks.causal_lm import CausalLMTuner
from train_func.worker.training.plan import build_plan
folder = Path(sys.argv[2])
def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1e6
data = write_questions(folder / "rows.jsonl", 10)
task = CausalLM(model=sys.argv[1], dataset=data, lora_rank=8, max_length=64)
Trainer.task = tuner = CausalLMTuner(task, 0, None, folder / "cache")
assert not tuner.check().faults
rows = tuner.rows()
tuner.fetch()
libraries = status("VmRSS:")
model, tokenizer = tuner.load((), "bf16")
train = tuner.encode(rows.train.select([0]).flatten_indices(), tokenizer)
plan = build_plan(train, seed=0, num_epochs=1, batch_size=1, micro_batch_size=1, num_micro_batches=1, world_size=1)
arguments = TrainingArguments(str(folder / "out"), num_train_epochs=1, use_cpu=True, bf16=True, report_to="none",
                              save_strategy="no", learning_rate=1e-3)
trainer = Trainer(model, arguments, train_dataset=split_dataset_by_node(plan, 0, 1), processing_class=tokenizer)
begun = time.perf_counter()
result = trainer.train()
print(json.dumps({
    "loss": result.training_loss,
    "steps": result.global_step,
    "seconds": time.perf_counter() - begun,
    "weights": sum(of.numel() for of in model.parameters()),
    "trained": sum(of.numel() for of in model.parameters() if of.requires_grad),
    "dtypes": sorted({f"{of.dtype} {of.requires_grad}" for of in model.parameters()}),
    "moved": sum(bool(of.abs().sum()) for name, of in model.named_parameters() if "lora_B" in name),
    "libraries": libraries,
    "peak": status("VmHWM:"),
}))
"""


@pytest.mark.slow
def test_one_step_of_64_tokens_needs_little_more_than_the_weights(tmp_path):
    def run(program, *arguments):
        command = [sys.executable, "-c", program, str(tmp_path / "llama"), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    run(MADE)
    found = json.loads(run(TRAINED, str(tmp_path)).splitlines()[-1])
    print(f"peak memory {found['peak']:.2f} GB, of it libraries {found['libraries']:.2f} GB; {found}")
    assert found["steps"] == 1
    assert found["weights"] - found["trained"] == 1_235_814_400  # those of meta-llama/Llama-3.2-1B
    assert found["dtypes"] == ["torch.bfloat16 False", "torch.float32 True"]
    assert found["moved"] > 100
    assert found["peak"] - found["libraries"] < 1.5 * 2 * 1.2358
