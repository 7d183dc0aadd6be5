"""`refold plan`: the best plans for a model on given GPUs, what they are made of, and why the others lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli.inputs import plan_request
from refold.cli.views import AsJson, output_width, print_json, print_tables, printable, say, tell

if TYPE_CHECKING:
    from refold.model import Plan
    from refold.perf import Estimate, Fitted, FormulaLine, Section, Setting
    from refold.plans import PlanLimits, Search

TRUST = "Estimated without measurements: docs/accuracy.md says how well; `refold fit` corrects it."
"""What stands under every estimate."""


def plan(
    model: plan_request.ModelName,
    gpus: plan_request.GpusAsked,
    nodes: plan_request.Nodes = None,
    cpus: plan_request.Cpus = None,
    host_memory: plan_request.HostMemory = None,
    network: plan_request.NetworkRate = None,
    batch: plan_request.Batch = None,
    seq: plan_request.Sequence = None,
    engine: plan_request.EngineName = plan_request.USUAL_ENGINE,
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="How many plans to show.")] = 10,
    fit: Annotated[
        Path | None, typer.Option("--fit", metavar="FILE", help="Correct estimates with what 'refold fit' has saved.")
    ] = None,
    pin: plan_request.Pin = None,
    no_offload: plan_request.NoOffload = False,
    tensor_across_nodes: plan_request.TensorAcrossNodes = False,
    uneven: plan_request.Uneven = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="PLAN", help="Every formula of a plan's time, with its numbers.")
    ] = None,
    why: Annotated[
        str | None, typer.Option("--why", metavar="PLAN", help="Why a plan is not the best, or not possible.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best plans for a model on given GPUs.

    How fast they are, what a step and its memory are made of, and why the others lost. A plan to explain is written
    as it is printed, or by its place in the table. Exit status: 0 done, 1 nothing fits, or the plan that was asked
    about cannot be used.

    Example: refold plan llama-2-7b --gpus 8xA100-80GB --batch 256 --seq 4096

    Example: refold plan llama-2-7b --gpus 8xA100-80GB --pin 'tp4 zero1' --explain 1

    Example: refold plan llama-2-7b --gpus 8xA100-80GB --why 'dp8'
    """
    from refold.catalogue import find_engine, read_model
    from refold.errors import BadInput
    from refold.perf import Setting, corrected
    from refold.plans import best_plans

    if explain is not None and why is not None:
        raise BadInput("--explain and --why are two questions: ask one of them")
    shape = read_model(model)
    machines = plan_request.machines_from(gpus, nodes, cpus, host_memory, network)
    samples, tokens, notes = plan_request.sizes_from(shape, batch, seq)
    fitted = _read_fit(fit, machines.gpu.name, engine) if fit is not None else None
    framework = find_engine(fitted.engine or engine if fitted else engine)
    setting = Setting(shape, machines, framework, samples, tokens)
    if fitted is not None:
        setting = corrected(setting, fitted.values)
        notes += [f"estimates are corrected with {fit}, fitted to {fitted.model} run by {framework.name}"]
    for_offload = {"--cpus": cpus, "--host-memory": host_memory}
    limits = plan_request.limits_from(pin, no_offload, tensor_across_nodes, uneven, for_offload)
    search = best_plans(setting, limits, top)
    notes += _assumed(setting, search, network)
    if explain is not None:
        _explain(setting, limits, _plan_meant(explain, search), notes, as_json)
    elif why is not None:
        _why(setting, limits, _plan_meant(why, search), search, notes, as_json)
    else:
        _answer(setting, search, notes, _trust(fitted), as_json)


def _read_fit(path: Path, gpu: str, engine: str) -> Fitted:
    """What was fitted, if it is for this GPU and this engine; an engine that was not asked for is that of the fit."""
    from refold.cli.commands.fit import read_fit
    from refold.errors import BadInput
    from refold.perf import CorrectedForm

    fitted = read_fit(path)
    if fitted.form != CorrectedForm.name:
        raise BadInput(f"{path} was fitted in the form {fitted.form!r}; plans need {CorrectedForm.name!r}")
    if fitted.gpu and fitted.gpu != gpu:
        raise BadInput(f"{path} was fitted on {fitted.gpu}, and the plan is for {gpu}")
    if engine not in (plan_request.USUAL_ENGINE, fitted.engine):
        raise BadInput(f"{path} was fitted to steps run by {fitted.engine}, not by {engine}: leave --engine out")
    return fitted


def _plan_meant(text: str, search: Search) -> Plan:
    """A plan as it is printed, or by its place among the best."""
    from refold.errors import BadInput
    from refold.model import plan_from_text

    if not text.strip().isdecimal():
        return plan_from_text(text)
    places = len(search.best)
    if not (len(text) < 9 and 1 <= int(text) <= places):
        there = f"expected 1 to {places}" if places else "nothing fits, so no plan has a place"
        raise BadInput(f"there is no plan number {text}: {there}, or a plan such as 'dp8 zero1'")
    return search.best[int(text) - 1].plan


def _assumed(setting: Setting, search: Search, network: str | None) -> list[str]:
    """What was taken for granted and would change the answer."""
    from refold.perf import USUAL_CPUS_PER_GPU

    machines, found = setting.machines, (*search.best, *search.misses[:1])
    notes = []
    if machines.nodes > 1 and network is None:
        notes += plan_request.usual_network(machines.gpu)
    if any(one.plan.offload for one in found):
        if not machines.cpus:
            notes.append(f"--cpus {USUAL_CPUS_PER_GPU * machines.gpus:g} is assumed, for plans that offload")
        if not machines.memory_gib:
            notes.append("no --host-memory was given, so plans that offload are not limited by it")
    return notes


# The answer.


def _trust(fitted: Fitted | None) -> str:
    """What to think of the figures."""
    if fitted is None:
        return TRUST
    return (
        f"Corrected with {len(fitted.samples)} measured steps of {fitted.model}, "
        f"of which each would be {100 * fitted.unseen_error:.1f} % off if left out."
    )


def _answer(setting: Setting, search: Search, notes: Sequence[str], trust: str, as_json: bool) -> None:
    from dataclasses import replace

    from refold.cli.views import plan_tables, rejection_tables

    if as_json:
        print_json(_document(setting, search, notes))
    else:
        tell(notes)
        *others, last = plan_tables(setting, search) if search.best else rejection_tables(setting, search)
        print_tables(*others, replace(last, after=[*last.after, "", trust]))
    if not search.best:
        raise typer.Exit(1)


def _document(setting: Setting, search: Search, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "setting": setting,
        "notes": notes,
        "best": [_estimate_document(setting, one) for one in search.best],
        "considered": search.considered,
        "out_of_memory": search.out_of_memory,
        "pruned": search.pruned,
        "lost": [
            {"reason": one.reason, "name": one.name, "plans": one.plans, "because": one.because, "by": one.by}
            | {"example": str(one.example)}
            for one in search.lost
        ],
        "misses": [_estimate_document(setting, one) for one in search.misses],
        "advice": search.advice,
        "enough_gpus": search.enough_gpus,
    }


def _estimate_document(setting: Setting, found: Estimate) -> dict[str, Any]:
    from msgspec.structs import asdict

    from refold.cli.views import micro_batch

    return asdict(found) | {
        "plan": str(found.plan),
        "degrees": asdict(found.plan),
        "micro_batch": micro_batch(setting, found.plan),
        "fits": found.fits,
    }


# One plan.


def _why(setting: Setting, limits: PlanLimits, plan: Plan, search: Search, notes: Sequence[str], as_json: bool) -> None:
    from refold.cli.views import title_of
    from refold.perf import estimate
    from refold.plans import why_not

    reasons = why_not(setting, plan, limits)
    found = None if reasons else estimate(setting, plan)
    best = search.best[0] if search.best else None
    times = found.step_seconds / best.step_seconds if found and best else None
    if as_json:
        document = {"setting": setting, "notes": notes, "plan": str(plan), "possible": not reasons, "why_not": reasons}
        print_json(document | {"times_as_long": times, "best": best and _estimate_document(setting, best)})
    else:
        tell(notes)
        _say_bold(title_of(setting))
        say(f"{plan}: {'not possible' if reasons else _compared(found, best)}")
        for reason in reasons:
            say(f"  {reason}")
    if reasons:
        raise typer.Exit(1)


def _compared(found: Estimate | None, best: Estimate | None) -> str:
    from refold.cli.views import times_text
    from refold.plans import NEARLY

    if found is None or best is None:
        return "possible"
    if found.plan == best.plan:
        return f"possible, and the best: {plan_request.seconds_text(found.step_seconds)} a step"
    times = found.step_seconds / best.step_seconds
    much = "as fast as the best, but less simple" if times < NEARLY else f"{times_text(times)} as long as the best"
    here, there = plan_request.seconds_text(found.step_seconds), plan_request.seconds_text(best.step_seconds)
    return f"possible, and {much} ({here} a step, {best.plan} {there})"


def _explain(setting: Setting, limits: PlanLimits, plan: Plan, notes: Sequence[str], as_json: bool) -> None:
    from refold.cli.views import title_of
    from refold.perf import estimate, explain
    from refold.plans import why_not

    reasons = why_not(setting, plan, limits)
    sections = explain(setting, plan)
    if as_json:
        found = _estimate_document(setting, estimate(setting, plan))
        document = {"setting": setting, "notes": notes, "why_not": reasons}
        print_json(document | {"estimate": found, "sections": sections})
    else:
        tell(notes)
        _say_bold(title_of(setting))
        say(f"{plan}: {'not possible' if reasons else 'every formula, with its numbers'}")
        for reason in reasons:
            say(f"  {reason}", fg=typer.colors.YELLOW)
        for section in sections:
            _print_section(section)
    if reasons:
        raise typer.Exit(1)


def _print_section(section: Section) -> None:
    say()
    _say_bold(section.title)
    names = max(len(line.name) for line in section.lines)
    values = max(len(_value(line)) for line in section.lines)
    for line in section.lines:
        known = {"", f"{line.value:.6g}"}
        workings = [text for text in dict.fromkeys((line.formula, line.numbers)) if text not in known]
        for place, text in enumerate(workings):
            _print_wrapped(line.name if not place else "", names, text)
        typer.secho(f"  {'' if workings else line.name:<{names}} = {_value(line):<{values}}  ", nl=False)
        typer.secho(printable(line.meaning), dim=True)


def _print_wrapped(name: str, names: int, text: str) -> None:
    """A formula; where a line has no room for all of it, it goes on below."""
    from textwrap import wrap

    for place, part in enumerate(wrap(text, max(40, output_width() - names - 5), break_long_words=False)):
        say(f"  {name if not place else '':<{names}} {'=' if not place else ' '} {part}")


def _say_bold(text: str) -> None:
    typer.secho(printable(text), bold=True)


def _value(line: FormulaLine) -> str:
    return f"{line.value:.6g} {line.unit}".strip()
