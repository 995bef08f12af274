"""The worker's programs: ``run`` (of a pod), ``template`` and ``rank`` (which it starts), ``check``, ``base`` and
``texts``."""

import gc
import os
import sys

from train_func.worker.rank import stacks
from train_func.worker.stop import Stop

USAGE = """usage: python -u -m train_func.worker run     supervise the ranks of one pod, as its process 1
       python -u -m train_func.worker template import what ranks import, and fork them; the supervisor starts it
       python -u -m train_func.worker rank     be one rank; the supervisor starts it where the template cannot
       python -m train_func.worker check      read {"run": ..., "store": ...} from stdin, report what is wrong with it
       python -m train_func.worker base       read {"model": ..., ...} from stdin, bring the model of adapters here
       python -m train_func.worker texts      read {"run": ..., "rows": ..., ...} from stdin, print their texts
"""


def main(arguments: list[str]) -> int:
    """The exit code."""
    gc.set_threshold(700, 10, 100)  # else a sixth of a start goes into searching what the imports made, and which stays
    if arguments == ["run"]:
        stop = Stop()
        stop.install()  # before anything slow is imported
        stacks.listen()
        from train_func.worker.supervisor.main import supervise

        supervise(os.environ, stop)
    if arguments == ["rank"]:
        from train_func.process.process_tree import die_with

        die_with(int(os.environ["TRAIN_FUNC_SUPERVISOR"]))  # before anything slow is imported
        from train_func.worker.rank import main as main_module
        from train_func.worker.rank import template

        template.tell_accelerate()
        main_module.main(os.environ)
    if arguments == ["template"]:
        from train_func.worker.rank import template

        return template.main(os.environ)
    if arguments == ["check"]:
        from train_func.worker import check

        return check.main()
    if arguments == ["base"]:
        from train_func.worker import check

        return check.base()
    if arguments == ["texts"]:
        os.environ["HF_HUB_OFFLINE"] = "1"  # no data set is downloaded for a look at some of its rows
        from train_func.worker import check

        return check.texts()
    sys.stderr.write(USAGE)
    return os.EX_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
