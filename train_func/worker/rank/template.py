"""The template: a process that has imported what ranks import, and forks them, so that a rank begins at once.

The supervisor starts it while the group forms, and keeps it for the attempts after a rank was lost. It imports this
package and Hugging Face's, never the user's module. Before each fork it checks that it has one thread and that CUDA is
untouched, because neither survives a fork; else it refuses, and the supervisor starts the rank as a new program.

multiprocessing's fork server with set_forkserver_preload was tried in its place. It forks as fast (0.04 s after imports
of 7 to 11 s), and passes environment, folder, descriptors and exit codes. But it does not look before it forks: after
the imports it had two threads. It does not say when it is ready, so the first rank waits for all imports, without a
limit. It imports the supervisor's main module into every rank. And ranks are its children: when it was killed, a rank
that went on was reported as ended with 255. Here the supervisor adopts each rank, and reaps it by itself.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from train_func.process.process_tree import die_with
from train_func.worker.rank import stop_flag

SOCKET = "TRAIN_FUNC_TEMPLATE"  # the descriptor on which the supervisor asks
MODULES = "TRAIN_FUNC_TEMPLATE_IMPORTS"  # with spaces between them
LONGEST = 2**20  # bytes of a request
QUIET = {
    # OpenBLAS and Arrow start threads when they are imported. https://github.com/apache/arrow/issues/31219
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # A library that asks for GPUs when it is imported would otherwise ask the CUDA runtime, which no fork survives.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, of WSL


def main(environ: Mapping[str, str]) -> int:
    """Serves the supervisor until it closes the socket."""
    supervisor = int(environ["TRAIN_FUNC_SUPERVISOR"])
    die_with(supervisor)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its end is the supervisor's to decide; a rank sets its own
    connection = socket.socket(fileno=int(os.environ.pop(SOCKET)))
    # As Python's documentation of gc.freeze has it: searching what the imports make, and what stays, costs a sixth of
    # them, and what a collection frees would be written to by every rank.
    gc.disable()
    for module in os.environ.pop(MODULES).split():
        with contextlib.suppress(ImportError):  # an image without it: the ranks that need it say so
            importlib.import_module(module)
    for name in QUIET:
        os.environ.pop(name, None)  # not meant for the ranks
    generators = generators_of_modules()
    gc.freeze()  # else each collection of a rank would copy the memory that it shares with the template
    connection.send(b"ready")
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, LONGEST, maxfds=1)
        if not data:
            return 0
        reason, request = why_not(), json.loads(data)
        answer = _refusal(reason) if reason else _fork(request, descriptors, supervisor, connection, generators)
        connection.send(answer)
        for descriptor in descriptors:
            os.close(descriptor)


def is_forked_from_cuda() -> bool:
    """Returns whether the template has used the CUDA runtime, which then works in no fork of it."""
    native: Any = sys.modules.get("torch._C")
    return bool(native and getattr(native, "_cuda_isInBadFork", lambda: False)())


def why_not() -> str:
    """Returns why this process must not fork; empty when it may."""
    if (num := len(os.listdir("/proc/self/task"))) != 1:  # noqa: PTH208
        return f"it has {num} threads"
    torch: Any = sys.modules.get("torch")
    return "CUDA is initialized" if torch is not None and torch.cuda.is_initialized() else ""


def _refusal(reason: str) -> bytes:
    return json.dumps({"refused": reason}).encode()


def _fork(
    request: Mapping[str, Any],
    descriptors: list[int],
    supervisor: int,
    connection: socket.socket,
    generators: Sequence[Any],
) -> bytes:
    """Makes a rank, a child of the supervisor; returns its answer with its process id, or that it cannot be a rank."""
    heard, tell = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(heard)
        if os.fork():
            os._exit(0)  # the rank is an orphan now, which the supervisor adopts
        try:
            connection.close()
            _be_rank(request, descriptors, supervisor, tell, generators)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(os.EX_SOFTWARE)
    os.close(tell)
    os.waitpid(between, 0)
    with os.fdopen(heard, "rb") as answer:
        return answer.read() or b"{}"  # it has died at once


def _be_rank(
    request: Mapping[str, Any], descriptors: list[int], supervisor: int, tell: int, generators: Sequence[Any]
) -> NoReturn:
    os.setsid()
    while os.getppid() != supervisor:
        os.kill(supervisor, 0)  # raises where it is gone, and another process adopts this one
        os.sched_yield()
    die_with(supervisor)
    if is_forked_from_cuda():
        os.write(tell, _refusal("an import has used the CUDA runtime"))
        os._exit(os.EX_SOFTWARE)
    stop_flag.hold()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for standard in (1, 2):
        os.dup2(descriptors[0], standard)
    os.close(descriptors[0])
    os.write(tell, json.dumps({"pid": os.getpid()}).encode())
    os.close(tell)
    os.environ.update(request["variables"])
    tell_accelerate()
    _seed_anew(generators)
    with contextlib.suppress(ImportError, ValueError):  # slower at worst
        num_threads = int(os.environ.get("OPENBLAS_NUM_THREADS") or os.environ["OMP_NUM_THREADS"])
        if num_threads > 1 and "numpy" in sys.modules:
            from threadpoolctl import threadpool_limits

            threadpool_limits(num_threads, user_api="blas")
    gc.enable()
    gc.set_threshold(700, 10, 100)
    from train_func.worker.rank import main as main_module

    main_module.main(os.environ)


def tell_accelerate() -> None:
    """Sets the variable that accelerate and transformers' Trainer need for several ranks without a GPU."""
    torch: Any = sys.modules.get("torch")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    has_gpu = torch.cuda.device_count() if torch else not hidden and any(map(os.path.exists, GPUS))
    if not has_gpu:
        os.environ.setdefault("ACCELERATE_USE_CPU", "1")


def generators_of_modules() -> list[Any]:
    """Returns all generators of random numbers that the imported modules hold.

    The template looks for them, not each rank: a look at every object of every module writes to its count of
    references, and so copies 90 MB of the memory that a rank shares with the template.
    """
    numpy: Any = sys.modules.get("numpy")
    kinds = (random.Random, numpy.random.RandomState) if numpy else (random.Random,)
    return [
        value
        for module in list(sys.modules.values())
        for value in list(getattr(module, "__dict__", {}).values())
        # isinstance asks the value, and what torch has deprecated warns when it is asked
        if issubclass(type(value), kinds) and not issubclass(type(value), random.SystemRandom)
    ]


def _seed_anew(generators: Sequence[Any]) -> None:
    """Seeds all generators of the imported modules, so that no two ranks draw the same numbers.

    datasets, for one, names the files of its cache by a generator of its own.
    """
    for generator in generators:
        generator.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
