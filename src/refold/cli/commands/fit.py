"""`refold fit`: fit the performance model to measured steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import argument, option
from refold.cli.inputs import plan_request
from refold.cli.views import AsJson, Column, Table, format_percent, print_json, print_notes, print_tables
from refold.errors import BadFile, BadInput, BadValue, UnknownName

if TYPE_CHECKING:
    from refold.planning.perf import Fitted, Form, GpuSpec, Measurement, ModelShape, Parameter, TrainingSetup

FORMS = ("corrected", "rubick-additive", "rubick-power")
UNNAMED = "model"
"""Model name of samples that do not name their model."""

KINDS = {"full": "", "factor": " (one common factor)", "none": " (nothing: the model agrees with them as it is)"}
"""What was fitted, for the title."""

MAX_PLAUSIBLE_FACTOR = 8.0
"""A fitted correction by more than this factor probably indicates an error in the samples."""

UNKNOWN_GPU_PRIOR_SCALE = 5.0
"""Factor by which the priors are widened for a machine that is not in the catalogue."""


def fit(
    samples: Annotated[Path, argument("SAMPLES.csv", "Measured steps (see docs/fit.md).")],
    model: Annotated[str | None, option("NAME|FILE", "Model to fit, if the file has several.")] = None,
    engine: plan_request.EngineName = "pytorch",
    form: Annotated[str, option("|".join(FORMS), "Form of the model.")] = FORMS[0],
    against: Annotated[Path | None, option("MORE.csv", "Further samples to validate the fit.")] = None,
    out: Annotated[Path | None, option("FILE", "Output file (default: SAMPLES.fit.json).")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the performance model to measured steps.

    Seven parameters are fitted to seven or more samples. Prints the parameters with their meaning, the error on the
    samples, the leave-one-out error, and the most informative sample to measure next. `refold plan --fit FILE` uses the
    fit.

    Example: refold fit benchmarks/accuracy/h200_measured.csv --model gpt2-xl
    """
    import msgspec

    from refold.planning.perf import fit as fit_parameters, fit_as_far_as_useful, most_informative_sample, predict

    shape, ran, gpu, notes = _read(samples, model)
    chosen = _form(form, shape, gpu, engine, ran)
    use = fit_as_far_as_useful if form == FORMS[0] and gpu.name != "cpu" else fit_parameters
    fitted = msgspec.structs.replace(use(chosen, ran), engine=engine)
    notes += _warnings(fitted)
    more = [one for one in _of_model(_samples(against), shape, against) if one.status == "ok"] if against else []
    errors = (predict(chosen, fitted, more) / [one.step_seconds or 1.0 for one in more] - 1).tolist() if more else []
    following = most_informative_sample(chosen, fitted, _candidates(ran))
    saved = out or samples.with_suffix(".fit.json")
    _save(saved, fitted)
    if as_json:
        print_json({"fitted": fitted, "next": following, "against": errors, "saved": str(saved), "notes": notes})
        return
    print_notes(notes)
    print_tables(*_tables(chosen, fitted, more, errors, following, saved))


def _read(path: Path, model: str | None) -> tuple[ModelShape, list[Measurement], GpuSpec, list[str]]:
    from refold.planning.catalogue import find_gpu, read_model

    found = _samples(path)
    names = sorted({one.model for one in found})
    if model is None and len(names) > 1:
        raise BadInput(f"{path} has samples of {len(names)} models; select one with --model: {', '.join(names)}")
    shape = read_model(model or names[0])
    ran = found if names == [UNNAMED] else _of_model(found, shape, path)
    gpus = sorted({one.gpu for one in ran})
    if len(gpus) > 1:
        raise BadInput(f"{path} has samples from {len(gpus)} GPU types ({', '.join(gpus)}): fit each type separately")
    notes = []
    if gpus[0].lower() in ("", "cpu"):
        notes.append("the samples name no GPU type: the fit uses the samples only, without a data sheet")
        return shape, ran, _unknown_machine(), notes
    return shape, ran, find_gpu(gpus[0]), notes


def _warnings(fitted: Fitted) -> list[str]:
    """Return warnings about implausible corrections, which point to errors in the samples."""
    if fitted.form != FORMS[0] or not fitted.gpu or fitted.gpu == "cpu":
        return []
    limit = MAX_PLAUSIBLE_FACTOR
    implausible = {name: value for name, value in fitted.values.items() if not 1 / limit < value < limit}
    return [
        f"{name} is {value:.3g} times the modelled value: is step_s in seconds?" for name, value in implausible.items()
    ]


def _samples(path: Path | None) -> list[Measurement]:
    from refold.planning.catalogue import read_samples

    return read_samples(path) if path else []


def _of_model(found: Sequence[Measurement], shape: ModelShape, path: Path | None) -> list[Measurement]:
    ours = [one for one in found if one.model == shape.name]
    if not ours:
        raise BadInput(
            f"{path} has no sample of {shape.name}; it has {', '.join(sorted({one.model for one in found}))}"
        )
    return ours


def _unknown_machine() -> GpuSpec:
    """Return a rough CPU as the starting point of the fit without a data sheet."""
    from refold.model import Link
    from refold.planning.perf import GpuSpec

    memory = Link("memory", 10.0)
    return GpuSpec("cpu", 1e6, 0.2, 0.2, 30.0, memory, 10.0, 10.0, 100.0, gpus_per_node=1, network_cards=1)


def _form(name: str, shape: ModelShape, gpu: GpuSpec, engine: str, ran: Sequence[Measurement]) -> Form:
    from refold.planning.perf import CorrectedForm, RubickForm

    known = gpu.name != "cpu"
    match name:
        case "corrected":
            return CorrectedForm(_settings(shape, gpu, engine), 1.0 if known else UNKNOWN_GPU_PRIOR_SCALE)
        case "rubick-additive":
            return RubickForm(shape, gpu, ran, "additive")
        case "rubick-power":
            return RubickForm(shape, gpu, ran, "power")
        case _:
            raise UnknownName("form", name, FORMS)


def _settings(shape: ModelShape, gpu: GpuSpec, engine: str) -> Callable[[Measurement], TrainingSetup]:
    from refold.model import Link
    from refold.planning.catalogue import find_engine
    from refold.planning.perf import Machines, TrainingSetup

    framework, network = find_engine(engine), Link("network", gpu.node_network_gigabytes_per_second)

    def setting_for(one: Measurement) -> TrainingSetup:
        machines = Machines(gpu, one.gpus_on_node, gpu.link, network, one.cpus)
        return TrainingSetup(shape, machines, framework, one.batch, one.sequence)

    return setting_for


def _candidates(ran: Sequence[Measurement]) -> list[Measurement]:
    """Return configurations to measure next on the same machines: other micro-batches, recomputation, offload."""
    from itertools import product

    import msgspec

    from refold.planning.plans import divisors

    seen = {(one.plan, one.batch) for one in ran}
    found = []
    for one in {(sample.gpus_on_node, sample.batch, sample.sequence): sample for sample in ran}.values():
        counts = divisors(max(1, one.batch // one.plan.data))
        for mode, offload, count in product(("none", "full"), (False, True), counts):
            plan = msgspec.structs.replace(one.plan, recompute=mode, offload=offload, accumulation=int(count))
            if (plan, one.batch) not in seen:
                found.append(msgspec.structs.replace(one, plan=plan))
    return found


def _save(path: Path, fitted: Fitted) -> None:
    import msgspec

    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(fitted), indent=1))
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None


def read_fit(path: Path) -> Fitted:
    """Read a file saved by `refold fit`."""
    import msgspec

    from refold.planning.perf import Fitted

    try:
        return msgspec.json.decode(path.read_bytes(), type=Fitted)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, BadValue) as error:
        raise BadFile(path, f"is not a file saved by refold fit: {error}") from None


def _tables(
    form: Form,
    fitted: Fitted,
    more: Sequence[Measurement],
    errors: Sequence[float],
    following: Measurement | None,
    saved: Path,
) -> list[Table]:

    from refold.planning.perf import format_uncertainty

    columns: list[Column[Parameter]] = [
        Column("parameter", lambda one: one.name, whole=True),
        Column("value", lambda one: f"{fitted.values[one.name]:.3g}", number=True),
        Column("uncertainty", lambda one: format_uncertainty(fitted.spread[one.name]), number=True),
        Column("meaning", lambda one: one.meaning),
    ]
    where = fitted.gpu or "this machine"
    title = f"{fitted.model} on {where}: {fitted.form}, fitted to {len(fitted.samples)} samples{KINDS[fitted.kind]}"
    numbers = Table(title, columns, form.parameters)
    tables = [numbers, _sample_table("Samples", fitted.samples, fitted.errors, fitted.unseen)]
    if more:
        tables.append(_sample_table("Validation samples", more, errors, None))
    fit_error, unseen_error = format_percent(fitted.mean_error), format_percent(fitted.unseen_error)
    after = [f"mean error: {fit_error} on the samples, {unseen_error} leave-one-out"]
    if errors:
        validation_error = format_percent(sum(map(abs, errors)) / len(errors))
        after.append(f"mean error: {validation_error} on {len(errors)} validation samples")
    if following is not None:
        setup = f"batch {following.batch}" + (f", {following.cpus:g} CPUs" if following.plan.offload else "")
        after.append(f"most informative next sample: {following.plan}, {setup}")
    after.append(f"saved: {saved}" + (f"; refold plan … --fit {saved}" if _is_for_plans(fitted) else ""))
    tables[-1] = tables[-1]._replace(after=after)
    return tables


def _is_for_plans(fitted: Fitted) -> bool:
    """Whether `refold plan --fit` accepts the fit: corrections on a GPU type of the catalogue."""
    return fitted.form == FORMS[0] and fitted.gpu.lower() not in ("", "cpu")


def _sample_table(
    title: str, samples: Sequence[Measurement], errors: Sequence[float], unseen: Sequence[float] | None
) -> Table:
    from refold.cli.views import format_step_time

    columns: list[Column[tuple[Measurement, float, float]]] = [
        Column("plan", lambda row: str(row[0].plan), whole=True),
        Column("batch", lambda row: f"{row[0].batch:,}", number=True),
        Column("tokens", lambda row: f"{row[0].sequence:,}", number=True),
        Column("CPUs", lambda row: f"{row[0].cpus:g}" if row[0].cpus else "", number=True),
        Column("measured", lambda row: format_step_time(row[0].step_seconds or 0.0), number=True),
        Column("error", lambda row: f"{100 * row[1]:+.1f} %", number=True),
    ]
    if unseen is not None:
        columns.append(Column("leave-one-out", lambda row: f"{100 * row[2]:+.1f} %", number=True))
    return Table(title, columns, [*zip(samples, errors, unseen or errors, strict=True)])
