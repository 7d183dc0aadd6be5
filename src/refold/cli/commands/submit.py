"""`refold submit`: submit a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from refold.cli import (
    DependencyOption,
    TenantOption,
    argument,
    connect,
    format_placement,
    format_reason,
    option,
    switch,
    with_option_groups,
)
from refold.cli.inputs import (
    ClassName,
    GpuTotal,
    InstanceCount,
    LaunchEngineName,
    PreferredLevel,
    RequiredLevel,
    Segment,
    Switches,
    parse_job_class,
    parse_launch_engine,
)
from refold.cli.views import AsJson, plural, print_json, print_line, print_notes, print_tables

if TYPE_CHECKING:
    from refold.cli.inputs import SubmitOptions
    from refold.client import Client, ExportedVariables
    from refold.client.api import JobStatus, Preview, Submission

MAX_JOBS_PER_REQUEST = 1000
"""Jobs that the daemon accepts in one request."""

MAX_LISTED = 5
"""Jobs whose ids are printed."""

COMMAND_KEY = "refold.command"
"""Key of the context's metadata with the arguments after `--`."""


class CommandAfterDashes(TyperCommand):
    """A command that takes the arguments after `--` unparsed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the arguments after `--` in the context and parse the others."""
        if "--" in args:
            dashes = args.index("--")
            ctx.meta[COMMAND_KEY] = args[dashes + 1 :]
            args = args[:dashes]
        return super().parse_args(ctx, args)


COMMAND_CLASSES = {"submit": CommandAfterDashes}
"""Command classes by command name, for `lazy_group`."""


@dataclass(frozen=True, slots=True)
class _Request:
    name: Annotated[
        str | None, option("NAME", "Job name; run times are predicted from earlier jobs of the same name.")
    ] = None
    gpus: GpuTotal = None
    gpu_type: Annotated[str | None, option("NAME,…", "Accepted GPU types (default: any).")] = None
    instances: InstanceCount = None
    cpus: Annotated[str | None, option("N", "CPUs per instance, or auto (default: none requested).")] = None
    memory: Annotated[str | None, option("SIZE", "Memory per instance: 32 (GiB), 32GB, 512MB or auto.")] = None
    required_level: RequiredLevel = None
    preferred_level: PreferredLevel = None
    segment: Segment = None
    switches: Switches = None
    tenant: TenantOption = None
    job_class: ClassName = None
    priority: Annotated[int | None, option("N", "Priority, for policies that use it (default: 0).")] = None


@dataclass(frozen=True, slots=True)
class _Changes:
    """Whether and how often the job may be stopped or reshaped."""

    preemptible: Annotated[
        bool | None,
        switch(
            "--preemptible/--no-preemptible",
            "Whether the job may be stopped or reshaped for other jobs (default: only if it is best-"
            "effort or has a range of GPUs).",
            show_default=False,
        ),
    ] = None
    reshape_at_most: Annotated[int | None, option("N", "Stop or reshape the job at most N times.", min=0)] = None
    reshape_every: Annotated[str | None, option("TIME", "Minimum time between two such changes, such as 10m.")] = None


@dataclass(frozen=True, slots=True)
class _Training:
    """How long the job runs, and how it computes."""

    time: Annotated[str | None, option("TIME", "Time limit, such as 90m, 12h or 2d.")] = None
    estimate: Annotated[str | None, option("TIME", "Estimated run time.")] = None
    steps: Annotated[int | None, option("N", "Number of training steps.", min=0)] = None
    plan: Annotated[
        str | None, option("PLAN", "'auto' (chosen by the scheduler), 'off', or a plan: 'dp4 tp2' (default: off).")
    ] = None
    engine: LaunchEngineName = None


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The variables and files of the job's processes."""

    env: Annotated[list[str] | None, option("NAME=VALUE", "Environment variable; repeatable.")] = None
    secret: Annotated[list[str] | None, option("NAME", "Pass this environment variable as a secret; repeatable.")] = (
        None
    )
    export: Annotated[
        str | None,
        option(
            "ALL|NONE|A,B",
            "Variables of this environment that the job inherits; with NONE, it inherits the daemon's. "
            "Variables that look like secrets are passed only if named (default: ALL).",
        ),
    ] = None
    workdir: Annotated[Path | None, option("DIR", "Working directory (default: that of the file, or this one).")] = None
    output: Annotated[
        str | None,
        option(
            "FILE",
            "Copy the output to this file, such as logs/%x-%j.out; 'refold logs' shows it in any case.",
            "--output",
            "-o",
        ),
    ] = None
    error: Annotated[str | None, option("FILE", "Copy standard error to this file instead.", "--error", "-e")] = None


@dataclass(frozen=True, slots=True)
class _Conditions:
    """When the job starts, how often, and who is told."""

    retries: Annotated[int | None, option("N", "Number of retries after failures (default: 0).", min=0, max=1000)] = (
        None
    )
    after: DependencyOption = None
    begin: Annotated[str | None, option("TIME", "Do not start before: now+10m, 16:00 or 2026-12-31T08:00.")] = None
    array: Annotated[
        str | None,
        option("TASKS", "One job per task number, such as 0-9, 0-9:3 or 1,3,5-7; 0-9%2 runs at most 2 at once."),
    ] = None
    notify: Annotated[list[str] | None, option("URL", "Notification target as an apprise URL; repeatable.")] = None
    hold: Annotated[bool, switch("--hold", "Hold the job until 'refold release'.")] = False
    allow_impossible: Annotated[
        bool, switch("--allow-impossible", "Accept a job that does not fit this cluster, for nodes that will be added.")
    ] = False


@dataclass(frozen=True, slots=True)
class _Mode:
    """What the command does with the job."""

    dry_run: Annotated[bool, switch("--dry-run", "Show the expected outcome without submitting.")] = False
    wait: Annotated[bool, switch("--wait", "Wait until the job ends; exit with its exit status.")] = False
    as_json: AsJson = False


@with_option_groups
def submit(
    *,
    context: typer.Context,
    file: Annotated[
        str | None,
        argument("FILE | -- COMMAND…", "Job file (YAML), script with #SBATCH lines, manifest; or a command."),
    ] = None,
    request: _Request,
    changes: _Changes,
    training: _Training,
    surroundings: _Surroundings,
    conditions: _Conditions,
    mode: _Mode,
) -> None:
    """Submit a job: a YAML file, a script, a manifest, or a command after --.

    docs/jobs.md lists the fields of a file. Options override them. On a terminal, the expected outcome is shown too;
    otherwise only the job id is printed, for scripts. A job that can never run on this cluster is rejected.

    Examples: refold submit job.yaml · refold submit train.sbatch --array 0-9%2 ·
    refold submit --gpus 2 -- python train.py
    """
    from refold.cli.inputs import read_submissions
    from refold.client import EXPORT_ALL, choose_exported

    options = _options(request, changes, training, surroundings, conditions)
    jobs, notes, script_export = read_submissions(file, context.meta.get(COMMAND_KEY, ()), options)
    print_notes(notes)
    exported = choose_exported(os.environ, surroundings.export or script_export or EXPORT_ALL)
    client = connect()
    if exported is not None:
        jobs = _with_environment(client, jobs, exported)
    if mode.dry_run:
        preview = client.preview(jobs[0])
        _print_preview(client, jobs, preview, mode.as_json)
        raise typer.Exit(0 if preview.fits or jobs[0].allow_impossible else 2)
    _submit(client, jobs, mode.wait, mode.as_json)


def _options(
    request: _Request, changes: _Changes, training: _Training, surroundings: _Surroundings, conditions: _Conditions
) -> SubmitOptions:
    """Return the options as fields of a submission, and those that must be parsed first."""
    from refold.cli.inputs import SubmitOptions

    fields = {
        "name": request.name,
        "instances": request.instances,
        "cpus": request.cpus,
        "tenant": request.tenant,
        "job_class": None if request.job_class is None else parse_job_class(request.job_class),
        "priority": request.priority,
        "preemptible": changes.preemptible,
        "reshape_at_most": changes.reshape_at_most,
        "steps": training.steps,
        "engine": None if training.engine is None else parse_launch_engine(training.engine),
        "retries": conditions.retries,
        "notify": conditions.notify or None,
        "hold": conditions.hold or None,
        "array": conditions.array,
        "output": surroundings.output,
        "error": surroundings.error,
        "allow_impossible": conditions.allow_impossible or None,
    }
    return SubmitOptions(
        fields,
        gpus=request.gpus,
        gpu_types=request.gpu_type,
        levels=(request.required_level, request.preferred_level),
        segment=request.segment,
        switches=request.switches,
        memory=request.memory,
        time_limit=training.time,
        estimate=training.estimate,
        reshape_every=changes.reshape_every,
        begin=conditions.begin,
        plan=training.plan,
        workdir=surroundings.workdir,
        environment=surroundings.env or (),
        secrets=surroundings.secret or (),
        after=conditions.after or (),
    )


def _with_environment(client: Client, jobs: Sequence[Submission], exported: ExportedVariables) -> list[Submission]:
    """Store the environment that the jobs inherit, and return the jobs with its id."""
    import msgspec

    if exported.withheld:
        print_notes([f"not exported, because they look like secrets (see --secret): {', '.join(exported.withheld)}"])
    stored = client.create_environment(exported.variables)
    return [msgspec.structs.replace(job, exported=stored.id) for job in jobs]


def _submit(client: Client, jobs: Sequence[Submission], wait: bool, as_json: bool) -> None:
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    preview = _preview_if_possible(client, jobs[0]) if interactive else None
    if preview and (preview.fits or jobs[0].allow_impossible):
        _print_preview(client, jobs, preview, as_json)
    submitted = _send(client, jobs)
    if not interactive:
        infeasible = [job for job in submitted if job.state == "infeasible"]
        print_notes([f"{job.id} cannot start until nodes are added: {job.message}" for job in infeasible])
    if as_json and not wait:
        print_json(submitted)
    elif not as_json:
        _print_submitted(submitted, interactive)
    if wait:
        raise typer.Exit(_wait(client, submitted, as_json))


def _preview_if_possible(client: Client, job: Submission) -> Preview | None:
    """Return the expected outcome; None if the daemon is too busy to find it: the job can be submitted even so."""
    from refold.errors import NoDaemon, TooManyRequests, Unavailable

    try:
        return client.preview(job)
    except (NoDaemon, TooManyRequests, Unavailable) as error:
        print_notes([f"no preview: {error}"])
        return None


def _print_preview(client: Client, jobs: Sequence[Submission], preview: Preview, as_json: bool) -> None:
    """Print the expected outcome of the first job, which stands for all: the jobs of one file are alike."""
    if as_json:
        print_json({"job": jobs[0].name, "jobs": len(jobs), "preview": preview})
        return
    from refold.cli.views import preview_table

    print_tables(preview_table(jobs, preview, client.info().now))


def _send(client: Client, jobs: Sequence[Submission]) -> list[JobStatus]:
    if len(jobs) == 1 and not jobs[0].array:
        return [client.submit(jobs[0])]
    batches = (jobs[begin : begin + MAX_JOBS_PER_REQUEST] for begin in range(0, len(jobs), MAX_JOBS_PER_REQUEST))
    return [status for batch in batches for status in client.submit_all(batch)]


def _print_submitted(submitted: Sequence[JobStatus], interactive: bool) -> None:
    """Print the ids of jobs and arrays; on a terminal also where they run or why they wait, and what to do next."""
    by_id: dict[str, list[JobStatus]] = {}
    for job in submitted:
        by_id.setdefault(job.array or job.id, []).append(job)
    if not interactive:
        for job_id in by_id:
            print(job_id)
        return
    for job_id, (job, *more) in islice(by_id.items(), MAX_LISTED):
        details = f"{len(more) + 1:,} tasks" if job.array else format_placement(job.placement) or format_reason(job)
        print_line(f"{job_id} submitted" + (f" {details}" if details else ""))
    if len(by_id) > MAX_LISTED:
        print_line(f"… and {plural(len(by_id) - MAX_LISTED, 'more job')}, up to {list(by_id)[-1]}")
    first, whole = submitted[0].id, next(iter(by_id))
    print_line()
    for command, purpose in (
        (f"refold logs -f {first}", "follow its output"),
        (f"refold why {first}", "show its history and why it waits"),
        (f"refold cancel {whole}", "cancel it"),
    ):
        print_line(f"  {command:{len(first) + 16}}  {purpose}")


def _wait(client: Client, submitted: Sequence[JobStatus], as_json: bool) -> int:
    """Wait until all jobs have ended; return 0 if all finished, else the exit status of the first other one, or 1."""
    try:
        ended = [client.wait(job.id) for job in submitted]
    except KeyboardInterrupt:
        jobs = "the job continues" if len(submitted) == 1 else "the jobs continue"
        print_line(f"no longer waiting, {jobs}; see 'refold queue'", err=True)
        raise
    if as_json:
        print_json(ended)
    for job in ended:
        if not as_json:
            print_line(f"{job.id} {job.state}{f': {job.message}' if job.message else ''}", err=True)
    return next((job.exit_code or 1 for job in ended if job.state != "finished"), 0)
