"""A rank for which the others wait is named while a real job trains, with what it is slow in."""

import pytest

from tests.jobs.functions import is_slow_on_rank_1
from tests.local_jobs import lines_of
from train_func import Local, Run, submit
from train_func.wire import events


@pytest.mark.parametrize("part", ["data", pytest.param("compute", marks=pytest.mark.slow)])
def test_a_slow_rank_is_named_with_the_part_and_the_memory_of_each_worker_is_told(home, capsys, part):
    parameters = {"steps": 80, "sleeps": 0.4, "in_data": part == "data"}  # 32 s; two intervals of 10 s name a rank
    run = Run(workers=2, batch_size=4, epochs=1, parameters=parameters)
    job = submit(is_slow_on_rank_1, run, on=Local(cpu=1))
    assert job.watch() == "Succeeded", "\n".join(job.logs())
    said = [events.parse(line.text) for line in lines_of(Local().job(job.record.job_name))]
    measured = [event for event in said if isinstance(event, events.WorkersMeasured)]
    named = {(event.slow_part, event.slow_rank, event.slow_worker) for event in measured if event.slow_part}
    assert named == {(part, 1, 1)}
    last = measured[-1].workers
    assert {*last} == {"0", "1"}
    assert all(worker["memory"] > 10**7 for worker in last.values())
    in_exchange = measured[-1].PARTS.index("exchange")
    assert last["0"]["ranks"]["0"][in_exchange] > 50 > last["1"]["ranks"]["1"][in_exchange]
    assert capsys.readouterr().out.count("slow: rank 1 (worker 1)") == 1
