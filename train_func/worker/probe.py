"""The probe: what depends on the machine is found out once per run, recorded, and kept by every later attempt."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from train_func.errors import StorageFailed
from train_func.storage import Store

WORTH_IT = 1.2  # times faster bfloat16 must be; below that its rounding buys nothing
ROWS, WIDTH = 1024, 768  # of the product that is timed, like the layers of a small BERT
REPEATS = 3


@dataclass(frozen=True)
class Probe:
    """How a run computes. Seconds are those of one product, None where they did not decide."""

    precision: Literal["bf16", "fp32"]
    num_micro_batches: int
    """Per global batch."""
    device: str
    fp32_seconds: float | None = None
    bf16_seconds: float | None = None


def probe(num_micro_batches: int) -> Probe:
    """Asks this machine; on a CPU that can bfloat16 it takes part of a second."""
    if torch.cuda.is_available():
        good = torch.cuda.is_bf16_supported(including_emulation=False)
        return Probe("bf16" if good else "fp32", num_micro_batches, torch.cuda.get_device_name())
    able = torch.cpu.get_capabilities()
    name = str(able.get("cpu_name", able["architecture"]))
    if not any(able.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")):
        return Probe("fp32", num_micro_batches, name)
    slow, fast = _seconds(torch.float32), _seconds(torch.bfloat16)
    return Probe("bf16" if slow > WORTH_IT * fast else "fp32", num_micro_batches, name, slow, fast)


def _seconds(kind: torch.dtype) -> float:
    """Of a forward and backward product under autocast, the best of a few."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, WIDTH, generator=generator)
    weights = torch.randn(WIDTH, WIDTH, generator=generator, requires_grad=True)
    best = float("inf")
    for _ in range(REPEATS + 1):  # the first warms up
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=kind, enabled=kind is not torch.float32):
            product = rows @ weights
        torch.autograd.backward(product.sum())
        best = min(best, time.perf_counter() - started)
    return best


def recorded(store: Store, key: str, ask: Callable[[], Probe]) -> Probe:
    """The probe under ``key``; when there is none, the answer of ``ask``, unless another was quicker."""
    if found := _read(store, key):
        return found
    found = ask()
    try:
        store.put(key, json.dumps(asdict(found), indent=1).encode(), if_absent=True)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
    return _read(store, key) or found


def _read(store: Store, key: str) -> Probe | None:
    try:
        return Probe(**json.loads(store.get(key).data))
    except StorageFailed as failure:
        if failure.reason != "absent":
            raise
    return None
