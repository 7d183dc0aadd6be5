"""`refold plan`: find the best plans for a model on given GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import option, with_option_groups
from refold.cli.inputs import LaunchTargetName, parse_launch_engine, plan_request, plan_values
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_tables
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.model import LaunchEngine, Plan
    from refold.planning.perf import Estimate, Fitted, Machines, ModelShape, Training, TrainingSetup
    from refold.planning.plans import LaunchSettings, PlanLimits, PlanSearch, Task

ACCURACY_NOTE = "Estimated without measurements; see docs/accuracy.md. Correct the model with `refold fit`."
"""Printed below every estimate."""


@with_option_groups
def plan(
    *,
    model: plan_request.ModelName,
    hardware: plan_request.MachineOptions,
    training: plan_request.BatchOptions,
    tuned: plan_request.TuningOptions,
    top: Annotated[int, option("N", "Number of plans to show.", min=1, max=1000)] = 10,
    fit: Annotated[Path | None, option("FILE", "Correct estimates with a file saved by 'refold fit'.")] = None,
    limits: plan_request.PlanLimitOptions,
    cost: plan_values.TrainingCostOptions,
    launch: LaunchTargetName = None,
    explain: Annotated[str | None, option("PLAN", "Show the formulas of a plan's step time.")] = None,
    why: Annotated[str | None, option("PLAN", "Show why a plan is not the best, or not valid.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best plans for a model on given GPUs.

    Shows their throughput, the breakdown of step time and memory, and why other plans were rejected. --explain and
    --why take a plan as printed, or its number in the table. Exit status: 0 success, 1 no plan fits, or the given plan
    is not valid.

    Example: refold plan llama-2-7b --gpus 8xA100-80GB --batch 256 --seq 4096

    Example: refold plan llama-2-7b --gpus 8xA100-80GB --pin 'tp4 zero1' --explain 1

    Example: refold plan llama-2-7b --gpus 8xA100-80GB --why 'dp8'

    Example: refold plan mistral-7b --gpus 1xH200 --batch 16 --seq 2048 --engine transformers --lora 16

    Example: refold plan examples/module.py --gpus 8xH100 --batch 512

    Example: refold plan llama-3.1-70b --gpus 512xH100 --tokens 15T --price 2.5 --mtbf 3h

    Example: refold plan deepseek-v3 --gpus 256xGB200 --engine megatron-core --precision mxfp8
    """
    from msgspec.structs import replace

    from refold.cli.inputs import find_plan, read_or_trace_model
    from refold.model import MAX_DEGREE
    from refold.planning.perf import apply_corrections
    from refold.planning.plans import LAUNCH_TARGETS, Task, best_plans

    if explain is not None and why is not None:
        raise BadInput("--explain and --why exclude each other: leave one of them out")
    shape = read_or_trace_model(model)
    machines = hardware.parse()
    fitted = _read_fit(fit, machines.gpu.name, training.engine) if fit is not None else None
    target = None if launch is None else parse_launch_engine(launch)
    known = (fitted.engine if fitted else None) or training.engine
    if target is not None and not shape.traced:
        known = known or LAUNCH_TARGETS[target].estimated_as
    offload = {"--cpus": hardware.cpus, "--host-memory": hardware.host_memory}
    task = Task(pinned=limits.parse_pins(), offload=any(value is not None for value in offload.values()))
    setup, notes = _describe_training(shape, machines, training, tuned, task, known)
    if fitted is not None:
        setup = apply_corrections(setup, fitted.values)
        notes += [f"estimates are corrected with {fit}, fitted to {fitted.model} with {setup.engine.name}"]
    whole, assumed = cost.parse(setup)
    notes += assumed
    plan_limits = limits.parse(setup.sequence, offload, target)
    search = best_plans(setup, plan_limits, top)
    notes += _assumption_notes(setup, search, hardware.network) + (_left_to_script(setup, target) if target else [])
    possible = replace(plan_limits, max_context=MAX_DEGREE)  # one that was not tried may be asked for
    if (asked := explain or why) is not None:
        wanted = find_plan(asked, search)
        notes += _accumulation_notes(setup, possible, wanted)
        if explain is not None:
            _print_explanation(setup, possible, wanted, notes, as_json, whole)
        else:
            _print_comparison(setup, possible, wanted, search, notes, as_json)
    else:
        settings = _launch_settings(target, setup, search.best[0].plan) if target and search.best else None
        _print_best(setup, search, notes, _accuracy_note(fitted), as_json, settings, whole)


def _describe_training(
    shape: ModelShape,
    machines: Machines,
    training: plan_request.BatchOptions,
    tuned: plan_request.TuningOptions,
    task: Task,
    known: str | None,
) -> tuple[TrainingSetup, list[str]]:
    """Return what is trained with which framework, and notes on what was assumed. `known`: the framework, if given."""
    from refold.planning.perf import TrainingSetup

    tuning, assumed = tuned.parse()
    samples, tokens, notes = training.resolve_sizes(shape, machines.gpus, tuning)
    framework, chosen = training.resolve_engine(shape, machines.gpu, machines.gpus, task._replace(tuning=tuning), known)
    setup = TrainingSetup(shape, machines, framework, samples, tokens, tuning, tuned.packing or 0)
    return setup, [*notes, *chosen, *assumed]


def _read_fit(path: Path, gpu: str, engine: str | None) -> Fitted:
    """Read a fit and check that it is for this GPU type and engine, if one was given."""
    from refold.cli.commands.fit import read_fit
    from refold.planning.perf import CorrectedForm

    fitted = read_fit(path)
    if fitted.form != CorrectedForm.name:
        raise BadInput(f"{path} has the form {fitted.form!r}, expected {CorrectedForm.name!r}")
    if fitted.gpu and fitted.gpu != gpu:
        raise BadInput(f"{path} was fitted on {fitted.gpu}, but the plan is for {gpu}")
    if engine not in (None, fitted.engine):
        raise BadInput(f"{path} was fitted with engine {fitted.engine}, not {engine}: leave --engine out")
    return fitted


def _accumulation_notes(setup: TrainingSetup, limits: PlanLimits, plan: Plan) -> list[str]:
    """Say that a plan without accumulation is one micro-batch, and which accumulation would be best."""
    from msgspec.structs import asdict, replace

    from refold.cli.views import micro_batch
    from refold.planning.plans import Pins, best_plan

    samples = micro_batch(setup, plan)
    if plan.accumulation > 1 or samples <= 1:
        return []
    degrees = {name: value for name, value in asdict(plan).items() if name != "accumulation"}
    best = best_plan(setup, replace(limits, pinned=Pins(**degrees)))
    better = best.plan.accumulation if best else 1
    advice = f"; 'accumulate {better}' would be better" if better > 1 else ""
    return [f"{plan} has one micro-batch of {samples:g} samples per step{advice}"]


def _assumption_notes(setup: TrainingSetup, search: PlanSearch, network: str | None) -> list[str]:
    from refold.planning.perf import DEFAULT_CPUS_PER_GPU

    machines, found = setup.machines, (*search.best, *search.misses[:1])
    notes = [f"not modelled: {', '.join(setup.model.not_modelled)}"] if setup.model.not_modelled else []
    if not machines.gpu.bfloat16 and setup.engine.arithmetic == "half":
        notes.append(f"{machines.gpu.name} has no bfloat16: half precision is float16, with loss scaling")
    if machines.nodes > 1 and network is None:
        notes += plan_request.default_network_note(machines.gpu)
    if any(one.plan.offload for one in found):
        if not machines.cpus:
            notes.append(f"assuming --cpus {DEFAULT_CPUS_PER_GPU * machines.gpus:g} for plans with offload")
        if not machines.memory_gib:
            notes.append("assuming unlimited host memory for plans with offload (--host-memory)")
    return notes


def _accuracy_note(fitted: Fitted | None) -> str:
    if fitted is None:
        return ACCURACY_NOTE
    return (
        f"Corrected with {len(fitted.samples)} measured steps of {fitted.model}; "
        f"leave-one-out error {100 * fitted.unseen_error:.1f} %."
    )


def _launch_settings(target: LaunchEngine, setup: TrainingSetup, plan: Plan) -> LaunchSettings:
    from msgspec.structs import replace

    from refold.planning.plans import LaunchRequest, Workers, launch_settings

    nodes, model = setup.machines.gpus_on_node, setup.model
    request = LaunchRequest(plan, setup.batch, Workers(nodes[0], len(nodes)))
    if not model.opaque:
        recomputed = (
            "layernorm",
            *(("moe_act",) if model.experts > 1 else ()),
            *(("mla_up_proj",) if model.key_rank else ()),
        )
        precision = setup.engine.arithmetic if setup.engine.low_precision else "bf16"
        request = replace(request, sequence=setup.sequence, half="bf16" if setup.machines.gpu.bfloat16 else "fp16")
        request = replace(request, precision=precision, recomputed=recomputed)
    return launch_settings(target, request)


def _left_to_script(setup: TrainingSetup, target: LaunchEngine) -> list[str]:
    """Return a note on what the printed command does not set, though it was planned."""
    tuning, engine = setup.tuning, setup.engine
    left = ["adapters"] if tuning.lora_rank else []
    left += ["frozen layers"] if tuning.frozen_layers else []
    left += [tuning.optimizer] if tuning.optimizer != "adamw" else []
    left += [engine.arithmetic] if engine.low_precision and target != "megatron" else []
    return [f"the command does not set what your script must: {', '.join(left)}"] if left else []


def _print_best(
    setup: TrainingSetup,
    search: PlanSearch,
    notes: Sequence[str],
    accuracy: str,
    as_json: bool,
    launch: LaunchSettings | None,
    whole: Training | None,
) -> None:

    from msgspec.structs import asdict

    from refold.cli.views import plan_tables, rejection_tables, training_table
    from refold.planning.perf import compute_training_cost

    if as_json:
        started = {} if launch is None else {"launch": {"command": launch.command(), **asdict(launch)}}
        takes = compute_training_cost(setup, search.best[0], whole) if whole and search.best else None
        print_json(_document(setup, search, notes) | started | ({"training": takes} if whole else {}))
    else:
        print_notes(notes)
        *others, last = plan_tables(setup, search) if search.best else rejection_tables(setup, search)
        if whole and search.best:
            others.append(training_table(setup, search.best[0], whole))
        print_tables(*others, last._replace(after=[*last.after, "", accuracy]))
        if launch is not None:
            _print_launch(launch)
    if not search.best:
        raise typer.Exit(1)


def _print_launch(launch: LaunchSettings) -> None:
    """Print the command that starts the best plan, its variables and its files, ready to be copied."""
    print_line()
    print_line("Start the best plan", fg="bold")
    print_line(" ".join([*(f"{name}={value}" for name, value in launch.environment.items()), launch.command()]))
    for path, text in launch.files.items():
        print_line()
        print_line(path, fg="bold")
        for line in text.splitlines():
            print_line(line)


def _document(setup: TrainingSetup, search: PlanSearch, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "setup": setup,
        "notes": notes,
        "best": [_estimate_document(setup, one) for one in search.best],
        "considered": search.considered,
        "out_of_memory": search.out_of_memory,
        "pruned": search.pruned,
        "rejected": [
            {
                "reason": one.reason,
                "name": one.name,
                "plans": one.plans,
                "explanation": one.explanation,
                "margin": one.margin,
                "example": str(one.example),
            }
            for one in search.rejected
        ],
        "safer": search.safer and _estimate_document(setup, search.safer),
        "misses": [_estimate_document(setup, one) for one in search.misses],
        "advice": search.advice,
        "enough_gpus": search.enough_gpus,
    }


def _estimate_document(setup: TrainingSetup, found: Estimate) -> dict[str, Any]:
    from msgspec.structs import asdict

    from refold.cli.views import micro_batch
    from refold.planning.plans import is_risky

    return asdict(found) | {
        "plan": str(found.plan),
        "degrees": asdict(found.plan),
        "micro_batch": micro_batch(setup, found.plan),
        "fits": found.fits,
        "risky": is_risky(found),
    }


def _print_comparison(
    setup: TrainingSetup, limits: PlanLimits, plan: Plan, search: PlanSearch, notes: Sequence[str], as_json: bool
) -> None:
    from refold.cli.views import plan_title
    from refold.planning.perf import estimate
    from refold.planning.plans import rejection_reasons

    reasons = rejection_reasons(setup, plan, limits)
    found = None if reasons else estimate(setup, plan)
    best = search.best[0] if search.best else None
    slowdown = found.step_seconds / best.step_seconds if found and best else None
    if as_json:
        document = {"setup": setup, "notes": notes, "plan": str(plan), "valid": not reasons, "reasons": reasons}
        print_json(document | {"slowdown": slowdown, "best": best and _estimate_document(setup, best)})
    else:
        print_notes(notes)
        print_line(plan_title(setup), fg="bold")
        print_line(f"{plan}: {'not valid' if reasons else _compare(found, best)}")
        for reason in reasons:
            print_line(f"  {reason}")
    if reasons:
        raise typer.Exit(1)


def _compare(found: Estimate | None, best: Estimate | None) -> str:
    """Compare a valid plan with the best one."""
    from refold.cli.views import format_factor, format_step_time
    from refold.planning.plans import TIE_FACTOR

    if found is None or best is None:
        return "valid"
    own_time, best_time = (format_step_time(one.step_seconds) for one in (found, best))
    if found.plan == best.plan:
        return f"the best plan, {own_time} per step"
    slowdown = found.step_seconds / best.step_seconds
    compared = (
        "as fast as the best plan, but more complex"
        if slowdown < TIE_FACTOR
        else f"{format_factor(slowdown)} the step time of the best plan"
    )
    return f"valid, {compared} ({own_time} per step; {best.plan}: {best_time})"


def _print_explanation(
    setup: TrainingSetup, limits: PlanLimits, plan: Plan, notes: Sequence[str], as_json: bool, whole: Training | None
) -> None:
    from refold.cli.views import plan_title, print_section
    from refold.planning.perf import estimate, explain, explain_cost
    from refold.planning.plans import explain_segments, rejection_reasons

    reasons = rejection_reasons(setup, plan, limits)
    sections = explain(setup, plan) + explain_segments(setup, plan)
    sections += (explain_cost(setup, estimate(setup, plan), whole),) if whole else ()
    if as_json:
        found = _estimate_document(setup, estimate(setup, plan))
        document = {"setup": setup, "notes": notes, "reasons": reasons}
        print_json(document | {"estimate": found, "sections": sections})
    else:
        print_notes(notes)
        print_line(plan_title(setup), fg="bold")
        print_line(f"{plan}: {'not valid' if reasons else 'formulas of the step time'}")
        for reason in reasons:
            print_line(f"  {reason}", fg=typer.colors.YELLOW)
        for section in sections:
            print_section(section)
    if reasons:
        raise typer.Exit(1)
