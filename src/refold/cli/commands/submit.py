"""`refold submit`: ask the daemon to run a job, having seen what would become of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from refold.cli import AfterJobs, ForTenant, daemon, reason_text, where_text
from refold.cli.inputs import ClassName, class_from
from refold.cli.views import AsJson, Column, Table, clock_near, gpus_text, plural, print_json, print_tables, say, tell

if TYPE_CHECKING:
    from refold.api import JobStatus, Preview, Submission
    from refold.client import Client

LONGEST_SHOWN = 60
"""Characters of a command that are shown."""

MOST_AT_ONCE = 1000
"""Jobs that the daemon takes with one question."""

MOST_NAMED = 5
"""Jobs whose ids are told to people, one by one."""

TYPED = "refold.command"


class _AfterDashes(TyperCommand):
    """A command whose words after `--` are somebody else's: they are left as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put what follows `--` aside."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[TYPED] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)


COMMAND_CLASSES = {"submit": _AfterDashes}
"""What reads the words of commands that typer alone would not read as they are meant."""


def submit(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE | -- COMMAND…", help="A job as YAML, a script (#SBATCH is read), a manifest; or a command."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What it is called; jobs of a name last alike.")] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="In all: 8, a part of one (0.5), a range (2..8) [1].")
    ] = None,
    gpu_type: Annotated[str | None, typer.Option("--gpu-type", metavar="NAME,…", help="Any of these [any].")] = None,
    instances: Annotated[
        int | None, typer.Option("--instances", min=1, help="Processes that start together, or not at all [1].")
    ] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", min=0, help="Of each instance [not asked for].")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Of each instance: 32, 32GB, 512MB.")] = None,
    tenant: ForTenant = None,
    job_class: ClassName = None,
    priority: Annotated[int | None, typer.Option("--priority", help="For policies that look at it [0].")] = None,
    time: Annotated[str | None, typer.Option("--time", help="It may take so long: 90m, 12h, 2d.")] = None,
    estimate: Annotated[
        str | None, typer.Option("--estimate", metavar="TIME", help="It may well take so long.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=0, help="Steps of training that it wants to do.")] = None,
    plan: Annotated[
        str | None, typer.Option("--plan", help="auto: the scheduler chooses; off; or a plan: 'dp4 tp2' [off].")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable; repeatable.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME", help="A variable of yours that is told to nobody; repeatable."),
    ] = None,
    workdir: Annotated[
        Path | None, typer.Option("--workdir", metavar="DIR", help="Where it runs [here; of a file, as it says].")
    ] = None,
    retries: Annotated[int | None, typer.Option("--retries", min=0, max=1000, help="After failures [0].")] = None,
    after: AfterJobs = None,
    notify: Annotated[
        list[str] | None,
        typer.Option("--notify", metavar="URL", help="Whom to tell, as apprise writes it; repeatable."),
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Not before it is released ('refold release').")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would become of it, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is over; exit with its status.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job: a YAML file, a script, a manifest, or a command after two dashes.

    Options come before what a file says. On a terminal you see first what would become of it, and are asked. Elsewhere
    nothing is asked, and only the id is printed, for scripts.

    Examples: refold submit job.yaml · refold submit train.sbatch --gpus 4 · refold submit --gpus 2 -- python train.py
    """
    from refold.cli.inputs import SubmitOptions, submissions_from

    fields = {
        "name": name,
        "instances": instances,
        "cpus": cpus,
        "tenant": tenant,
        "job_class": None if job_class is None else class_from(job_class),
        "priority": priority,
        "steps": steps,
        "retries": retries,
        "after": after or None,
        "notify": notify or None,
        "hold": hold or None,
    }
    options = SubmitOptions(fields, gpus, gpu_type, memory, time, estimate, plan, workdir, env or (), secret or ())
    jobs, notes = submissions_from(file, context.meta.get(TYPED, ()), options)
    tell(notes)
    client = daemon()
    if dry_run:
        _show(client, jobs, as_json)
    else:
        _submit(client, jobs, yes, wait, as_json)


def _submit(client: Client, jobs: Sequence[Submission], yes: bool, wait: bool, as_json: bool) -> None:
    for_people = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if for_people:
        _show(client, jobs, as_json)
        if not yes and not typer.confirm("submit?", default=True):
            raise typer.Exit(1)
    submitted = _submitted(client, jobs)
    if as_json and not wait:
        print_json(submitted)
    elif not as_json:
        _tell_next(submitted, for_people)
    if wait:
        raise typer.Exit(_waited(client, submitted, as_json))


def _show(client: Client, jobs: Sequence[Submission], as_json: bool) -> None:
    """What would become of them; jobs of one file are alike, so the first is told."""
    preview = client.preview(jobs[0])
    if as_json:
        print_json({"job": jobs[0].name, "jobs": len(jobs), "preview": preview})
        return
    now = client.about().now
    rows = {
        "job": jobs[0].name + (f", and {plural(len(jobs) - 1, 'job')} like it" if len(jobs) > 1 else ""),
        "command": _command_text(jobs[0]),
        "in": jobs[0].folder,
        "size": f"{preview.demand}, {jobs[0].job_class}",
        "plan": preview.plan,
        "starts": _start_text(jobs[0], preview, now),
    }
    told = [{"what": what, "text": text} for what, text in rows.items() if text]
    after = [f"note: {note}" for note in preview.notes]
    print_tables(Table("", {"what": Column("", whole=True), "text": Column("")}, told, after))


def _command_text(job: Submission) -> str:
    """A script is told by its first line that says something."""
    text = shlex.join(job.command) if len(job.command) < 3 or job.command[1] != "-c" else job.command[2]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    first = lines[0] if lines else text
    cut = len(first) > LONGEST_SHOWN or len(lines) > 1
    return first[:LONGEST_SHOWN] + (" …" if cut else "")


def _start_text(job: Submission, preview: Preview, now: float) -> str:
    """'at once', 'at about 14:05:00, between 14:00:00 and 15:10:00, after 3 jobs'."""
    if not preview.fits:
        return f"never: the whole cluster, empty, has no room for {gpus_text(preview.gpus)} like that"
    if job.hold:
        return "when it is released"
    if preview.starts_now:
        return "at once"
    before = f"after {plural(preview.waiting_before, 'job')} that wait before it" if preview.waiting_before else ""
    before = before.replace("1 job that wait", "1 job that waits")
    expected = preview.start_estimate
    if expected is None:
        return before or "when there is room"
    when = f"at about {clock_near(expected.at, now)}"
    if expected.soonest is not None and expected.latest is not None:
        when += f", between {clock_near(expected.soonest, now)} and {clock_near(expected.latest, now)}"
    return ", ".join(part for part in (when, before) if part)


def _submitted(client: Client, jobs: Sequence[Submission]) -> list[JobStatus]:
    if len(jobs) == 1:
        return [client.submit(jobs[0])]
    parts = (jobs[begin : begin + MOST_AT_ONCE] for begin in range(0, len(jobs), MOST_AT_ONCE))
    return [status for part in parts for status in client.submit_all(part)]


def _tell_next(submitted: Sequence[JobStatus], for_people: bool) -> None:
    if not for_people:
        for job in submitted:
            print(job.id)
        return
    for job in submitted[:MOST_NAMED]:
        how = where_text(job.where) or reason_text(job)
        say(f"{job.id} is submitted" + (f" {how}" if how else ""))
    if len(submitted) > MOST_NAMED:
        say(f"… and {plural(len(submitted) - MOST_NAMED, 'job')} more, up to {submitted[-1].id}")
    first = submitted[0].id
    say()
    for command, what in (
        (f"refold logs -f {first}", "its output, as it comes"),
        (f"refold why {first}", "why it waits, and what happened"),
        (f"refold cancel {first}", "if you do not want it any more"),
    ):
        say(f"  {command:{len(first) + 16}}  {what}")


def _waited(client: Client, submitted: Sequence[JobStatus], as_json: bool) -> int:
    """Until all are over: 0 if they have finished, else the exit status of the first that has not, or 1."""
    try:
        ended = [client.wait(job.id) for job in submitted]
    except KeyboardInterrupt:
        say(f"{plural(len(submitted), 'job')} left to the daemon; 'refold queue' tells how they stand", err=True)
        raise
    if as_json:
        print_json(ended)
    for job in ended:
        if not as_json:
            say(f"{job.id} {job.state}{f': {job.why}' if job.why else ''}", err=True)
    return next((job.exit_code or 1 for job in ended if job.state != "finished"), 0)
