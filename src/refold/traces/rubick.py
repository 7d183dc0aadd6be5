"""The workload of Rubick (MLSys 2025): training jobs with their parallel plans and steps."""

from __future__ import annotations

import re

import msgspec

from refold.model import Demand, Job, Plan
from refold.traces.common_format import equal_instances
from refold.traces.text_source import BadCell, JobOfRow, TextSource, TextTable, jobs_of_rows, number, whole
from refold.traces.trace import Trace, in_order

NEEDED = (
    "name",
    "submission_time",
    "duration",
    "application",
    "num_gpus",
    "num_cpus",
    "exec_plan",
    "steps",
    "is_sla",
)
BATCHES = {"vit": 64, "roberta": 64, "bert": 32, "t5": 16, "gpt2": 16, "llama7": 8, "llama30": 4}
"""Samples of a step, which the file does not say: the global batches of Rubick's artifact."""

TENANTS = {"guaranteed": "A", "best-effort": "B"}
"""Of a file that has both classes: tenant A has the quota, and tenant B has none, as in Rubick's evaluation."""

ACCUMULATION = 2
"""`ga` does not say how many micro-steps are accumulated: the fewest that deserve the name."""


def recognises(first_line: str) -> bool:
    """The header has the workload's names."""
    return set(NEEDED) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """One reshapable job a row, with its plan and batch; `is_sla` says who is guaranteed."""
    table = TextTable(source)
    jobs, left_out = jobs_of_rows(table, _job_reader(table, gpus_per_instance), skip_bad=skip_bad)
    notes = [f"plan 'ga' does not say how often it accumulates: read as {ACCUMULATION}"]
    if len({job.job_class for job in jobs}) > 1:
        jobs = [msgspec.structs.replace(job, tenant=TENANTS[job.job_class]) for job in jobs]
    accumulating = any(job.plan and job.plan.accumulation > 1 for job in jobs)
    return in_order(source.name, jobs, left_out=left_out, notes=notes if accumulating else ())


def _job_reader(table: TextTable, gpus_per_instance: int) -> JobOfRow:
    name, submitted, duration, application, gpus, cpus, exec_plan, steps, is_sla = (
        table.index(column) for column in NEEDED
    )

    def job_of_row(row: list[str]) -> Job:
        total = whole(row[gpus], "num_gpus")
        instances, each = equal_instances(total, gpus_per_instance)
        cpu_milli = round(number(row[cpus], "num_cpus") * 1000 / instances)
        return Job(
            row[name],
            number(row[submitted], "submission_time"),
            Demand(instances, each, cpu_milli=cpu_milli),
            number(row[duration], "duration"),
            job_class="guaranteed" if whole(row[is_sla], "is_sla") else "best-effort",
            reshapable=True,
            workload=row[application],
            plan=plan_from_code(row[exec_plan], total),
            steps=whole(row[steps], "steps"),
            batch=BATCHES.get(row[application], 0),
        )

    return job_of_row


def plan_from_code(code: str, gpus: int) -> Plan:
    """`zero-dp`, `ga`, `gc`, `zero-offload` or `dp` on all GPUs; three digits are PP, TP, DP."""
    if re.fullmatch(r"[1-9]{3}", code):
        pipeline, tensor, data = map(int, code)
        if pipeline * tensor * data != gpus:
            raise BadCell("exec_plan", code, f"PP × TP × DP = {gpus}, the job's GPUs")
        return Plan(data, tensor, pipeline)
    plans = {
        "dp": Plan(gpus),
        "ga": Plan(gpus, accumulation=ACCUMULATION),
        "gc": Plan(gpus, recompute="full"),
        "zero-dp": Plan(gpus, zero=2),
        "zero-offload": Plan(gpus, zero=2, offload=True),
    }
    if code not in plans:
        raise BadCell("exec_plan", code, f"three digits or one of {', '.join(plans)}")
    return plans[code]
