"""The workload of Rubick (MLSys 2025): training jobs with their parallel plans and steps."""

from __future__ import annotations

import re

import msgspec

from refold.model import Demand, Job, Plan
from refold.simulator.traces.common_format import equal_instances
from refold.simulator.traces.text_source import (
    BadCell,
    RowParser,
    TextSource,
    TextTable,
    parse_number,
    parse_rows,
    parse_whole,
)
from refold.simulator.traces.trace import Trace, make_trace

REQUIRED_COLUMNS = (
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
GLOBAL_BATCHES = {"vit": 64, "roberta": 64, "bert": 32, "t5": 16, "gpt2": 16, "llama7": 8, "llama30": 4}
"""Samples per step, which the file does not give: the global batch sizes of Rubick's artifact."""

TENANTS = {"guaranteed": "A", "best-effort": "B"}
"""Tenants if a file has both classes: A has the quota and B has none, as in Rubick's evaluation."""

ACCUMULATION_STEPS = 2
"""Gradient accumulation steps of the plan code `ga`, which does not give a number: the smallest possible."""


def recognises(first_line: str) -> bool:
    """Return whether the header has the columns of a Rubick workload."""
    return set(REQUIRED_COLUMNS) <= set(first_line.split(","))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Read one reshapable job per row, with its plan and batch; jobs with `is_sla` are guaranteed."""
    table = TextTable(source)
    jobs, skipped_rows = parse_rows(table, _make_row_parser(table, gpus_per_instance), skip_bad=skip_bad)
    notes = [f"plan 'ga' does not give the accumulation steps; {ACCUMULATION_STEPS} are assumed"]
    if len({job.job_class for job in jobs}) > 1:
        jobs = [msgspec.structs.replace(job, tenant=TENANTS[job.job_class]) for job in jobs]
    accumulating = any(job.plan and job.plan.accumulation > 1 for job in jobs)
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes if accumulating else ())


def _make_row_parser(table: TextTable, gpus_per_instance: int) -> RowParser[Job]:
    name, submitted, duration, application, gpus, cpus, exec_plan, steps, is_sla = (
        table.index(column) for column in REQUIRED_COLUMNS
    )

    def parse_row(row: list[str]) -> Job:
        total = parse_whole(row[gpus], "num_gpus")
        instances, each = equal_instances(total, gpus_per_instance)
        cpu_milli = round(parse_number(row[cpus], "num_cpus") * 1000 / instances)
        return Job(
            row[name],
            parse_number(row[submitted], "submission_time"),
            Demand(instances, each, cpu_milli=cpu_milli),
            parse_number(row[duration], "duration"),
            job_class="guaranteed" if parse_whole(row[is_sla], "is_sla") else "best-effort",
            reshapable=True,
            workload=row[application],
            plan=plan_from_code(row[exec_plan], total),
            steps=parse_whole(row[steps], "steps"),
            batch=GLOBAL_BATCHES.get(row[application], 0),
        )

    return parse_row


def plan_from_code(code: str, gpus: int) -> Plan:
    """Parse `dp`, `ga`, `gc`, `zero-dp` or `zero-offload` on all GPUs, or three digits: PP, TP, DP."""
    if re.fullmatch(r"[1-9]{3}", code):
        pipeline, tensor, data = map(int, code)
        if pipeline * tensor * data != gpus:
            raise BadCell("exec_plan", code, f"PP × TP × DP = {gpus}, the number of GPUs of the job")
        return Plan(data, tensor, pipeline)
    plans = {
        "dp": Plan(gpus),
        "ga": Plan(gpus, accumulation=ACCUMULATION_STEPS),
        "gc": Plan(gpus, recompute="full"),
        "zero-dp": Plan(gpus, zero=2),
        "zero-offload": Plan(gpus, zero=2, offload=True),
    }
    if code not in plans:
        raise BadCell("exec_plan", code, f"three digits or one of {', '.join(plans)}")
    return plans[code]
