"""Job speeds: those that the simulator charges (the truth), and those that policies know (their belief)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.errors import BadFile, BadInput, BadValue

if TYPE_CHECKING:
    from refold.cli.inputs.policy_choice import SelectedPolicy
    from refold.model import Cluster, Job
    from refold.planning.perf import Fitted, Measurement
    from refold.planning.plans import Knowledge, Speeds
    from refold.simulator import SpeedModel

RECORDED, MODEL = "recorded", "model"
KNOWLEDGE = "knowledge"
"""The policy setting that holds the knowledge of job speeds."""


@dataclass(frozen=True, slots=True)
class Charging:
    """The source of simulated job speeds: `recorded`, `model`, or the path of a table of samples.

    `knowledge`: performance data in addition to the catalogue.
    """

    by: str = RECORDED
    table: Sequence[Measurement] = ()
    knowledge: Knowledge | None = None

    def charge(self, cluster: Cluster) -> SpeedModel:
        """Return the speed model; fallbacks: table, then performance model, then recorded times."""
        from refold.planning.plans import Crossings
        from refold.simulator import CrossingSpeeds, MeasuredSpeeds, ModelledSpeeds, RecordedSpeeds, recorded_speeds

        if self.by == RECORDED:
            return recorded_speeds(cluster)
        speeds = self._speeds(cluster)
        modelled = ModelledSpeeds(speeds, RecordedSpeeds(cluster))
        charged = modelled if self.by == MODEL else MeasuredSpeeds(self.table, speeds, modelled)
        return CrossingSpeeds(charged, Crossings(speeds)) if cluster.levels else charged

    def count_affected(self, jobs: Iterable[Job], cluster: Cluster) -> int:
        """Count the jobs not simulated with their recorded speed; for a table, those whose model it contains."""
        from refold.planning.catalogue import known_model

        if self.by == RECORDED:
            return 0
        speeds, measured = self._speeds(cluster), {row.model for row in self.table}

        def is_measured(job: Job) -> bool:
            model = known_model(job.workload) if measured else None
            return not measured or (model is not None and model.name in measured and job.steps is not None)

        return sum(speeds.can_model(job) and is_measured(job) for job in jobs)

    def _speeds(self, cluster: Cluster) -> Speeds:
        from refold.planning.plans import CATALOGUE_ONLY, Speeds

        return Speeds(cluster, self.knowledge or CATALOGUE_ONLY)


AS_RECORDED = Charging()


def parse_charging(charge: str | None, knowledge: Knowledge | None) -> Charging:
    """Parse `--charge`. The default is the performance model, for the jobs that it covers."""
    from refold.planning.catalogue import read_samples

    if charge in (None, RECORDED, MODEL):
        return Charging(charge or MODEL, (), knowledge)
    if not Path(charge).exists():
        raise BadFile(charge, f"no such file; --charge is {RECORDED}, {MODEL}, or a CSV file of measured samples")
    return Charging(charge, tuple(_with_catalogue_names(read_samples(charge))), knowledge)


def _with_catalogue_names(rows: Iterable[Measurement]) -> Iterable[Measurement]:
    """Yield the rows with model names replaced by the catalogue's name, where the catalogue has the model."""
    import msgspec

    from refold.planning.catalogue import known_model

    for row in rows:
        model = known_model(row.model)
        yield msgspec.structs.replace(row, model=model.name) if model else row


def check_charging(charge: str | None, charging: Charging, jobs: Sequence[Job], cluster: Cluster, trace: str) -> None:
    """Reject an explicit `--charge` that affects no job."""
    if charge is None or charging.by == RECORDED or charging.count_affected(jobs, cluster):
        return
    model = "in the catalogue" if charging.by == MODEL else f"that {charge} has samples of, has a number of steps,"
    raise BadInput(
        f"--charge {charge} applies to no job of {trace}: no job is reshapable, trains a model {model} "
        "and requests whole GPUs of a type in the catalogue"
    )


def format_charging(charging: Charging, jobs: Sequence[Job], cluster: Cluster) -> str:
    """Format 'speed of 406 of 406 jobs from the performance model'; '' if all jobs run at their recorded speed."""
    affected = charging.count_affected(jobs, cluster)
    if not affected:
        return ""
    source = "the performance model" if charging.by == MODEL else Path(charging.by).name
    return f"speed of {affected:,} of {len(jobs):,} jobs from {source}"


def read_knowledge(file: Path | None, fits: Sequence[Path] | None) -> Knowledge | None:
    """Read the files of `--knowledge` and `--fit`; None if neither is given."""
    if file is None and not fits:
        return None
    import msgspec

    from refold.cli.commands import read_fit
    from refold.planning.plans import CATALOGUE_ONLY, Knowledge

    known = CATALOGUE_ONLY
    if file is not None:
        try:
            known = msgspec.json.decode(file.read_bytes(), type=Knowledge)
        except OSError as error:
            raise BadFile(file, f"cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, BadValue) as error:
            raise BadFile(file, f"is not a knowledge file: {error}") from None
    known = msgspec.structs.replace(known, fits=(*known.fits, *map(read_fit, fits or ())))
    for fit in known.fits:
        _check_fit(fit)
    return known


def _check_fit(fitted: Fitted) -> None:
    """Reject a fit of another form than `CorrectedForm`: it cannot predict other plans."""
    from refold.planning.perf import CorrectedForm

    missing = [one.name for one in CorrectedForm.default_parameters if one.name not in fitted.values]
    if missing:
        raise BadInput(
            f"the fit of {fitted.model} on {fitted.gpu or 'no GPU'} has the form {fitted.form} "
            f"and lacks {', '.join(missing)}; use a file saved by refold fit --form {CorrectedForm.name}"
        )


def with_knowledge(
    policies: Sequence[SelectedPolicy], knowledge: Knowledge | None, charging: Charging
) -> list[SelectedPolicy]:
    """Return the policies with the knowledge added to the settings of each policy that takes it.

    Knowledge is passed as plain values, so that it can be stored in the journal header.
    """
    from dataclasses import replace

    import msgspec

    from refold.simulator import default_settings

    if knowledge is None:
        return list(policies)
    plain: Any = msgspec.to_builtins(knowledge)
    takes_knowledge = [KNOWLEDGE in default_settings(policy.policy) for policy in policies]
    if charging.by == RECORDED and not any(takes_knowledge):
        raise BadInput("--knowledge and --fit have no effect: none of the policies uses job speeds")
    return [
        replace(policy, settings={KNOWLEDGE: plain, **policy.settings}) if takes else policy
        for policy, takes in zip(policies, takes_knowledge, strict=True)
    ]
