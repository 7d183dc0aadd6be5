"""What jobs are charged (the truth of a simulation), and what policies are told of how fast jobs are (their belief)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.cli.inputs.policy_choice import Choice
    from refold.model import Cluster, Job
    from refold.perf import Fitted, Measurement
    from refold.plans import Knowledge, Speeds
    from refold.simulator import SpeedModel

RECORDED, MODEL = "recorded", "model"
KNOWLEDGE = "knowledge"
"""The setting under which policies are told."""


@dataclass(frozen=True, slots=True)
class Charging:
    """By what jobs are charged: `recorded`, `model`, or a table of samples; and what is known beside the catalogue."""

    by: str = RECORDED
    table: Sequence[Measurement] = ()
    knowledge: Knowledge | None = None

    def charge(self, cluster: Cluster) -> SpeedModel:
        """The charge of a simulation. What a table has not is modelled, and what the model does not know, recorded."""
        from refold.simulator import MeasuredSpeeds, ModelledSpeeds, RecordedSpeeds

        recorded = RecordedSpeeds(cluster)
        if self.by == RECORDED:
            return recorded
        speeds = self._speeds(cluster)
        modelled = ModelledSpeeds(speeds, recorded)
        return modelled if self.by == MODEL else MeasuredSpeeds(self.table, speeds, modelled)

    def charged(self, jobs: Iterable[Job], cluster: Cluster) -> int:
        """How many jobs are charged otherwise than as recorded: of a table, those of models that it has."""
        from refold.catalogue import known_model

        if self.by == RECORDED:
            return 0
        speeds, measured = self._speeds(cluster), {row.model for row in self.table}

        def has(job: Job) -> bool:
            model = known_model(job.workload) if measured else None
            return not measured or (model is not None and model.name in measured and job.steps is not None)

        return sum(speeds.knows(job) and has(job) for job in jobs)

    def _speeds(self, cluster: Cluster) -> Speeds:
        from refold.plans import NOTHING_MORE, Speeds

        return Speeds(cluster, self.knowledge or NOTHING_MORE)


AS_RECORDED = Charging()


def charging_from(charge: str | None, knowledge: Knowledge | None) -> Charging:
    """What `--charge` says; nothing said is the model, for the jobs that it knows."""
    from refold.catalogue import read_samples
    from refold.errors import BadFile

    if charge in (None, RECORDED, MODEL):
        return Charging(charge or MODEL, (), knowledge)
    if not Path(charge).exists():
        raise BadFile(charge, f"no such file; --charge is {RECORDED}, {MODEL}, or a CSV file of measured samples")
    return Charging(charge, tuple(_by_the_catalogue(read_samples(charge))), knowledge)


def _by_the_catalogue(rows: Iterable[Measurement]) -> Iterable[Measurement]:
    """Rows of models that the catalogue has, by its names for them."""
    import msgspec

    from refold.catalogue import known_model

    for row in rows:
        model = known_model(row.model)
        yield msgspec.structs.replace(row, model=model.name) if model else row


def check_charging(charge: str | None, charging: Charging, jobs: Sequence[Job], cluster: Cluster, trace: str) -> None:
    """A charge that was asked for and is no job's is refused."""
    from refold.errors import BadInput

    if charge is None or charging.by == RECORDED or charging.charged(jobs, cluster):
        return
    what = "that the catalogue knows" if charging.by == MODEL else f"that {charge} has samples of, and counts its steps"
    raise BadInput(
        f"--charge {charge} is about no job of {trace}: none is reshapable, trains a model {what}, "
        "and asks for whole GPUs of a type that is in the catalogue"
    )


def charging_text(charging: Charging, jobs: Sequence[Job], cluster: Cluster) -> str:
    """'406 of 406 jobs as fast as the performance model says'; '' where all are as recorded."""
    charged = charging.charged(jobs, cluster)
    if not charged:
        return ""
    by = "the performance model says" if charging.by == MODEL else f"{Path(charging.by).name} has measured"
    return f"{charged:,} of {len(jobs):,} jobs as fast as {by}"


def knowledge_from(file: Path | None, fits: Sequence[Path] | None) -> Knowledge | None:
    """What `--knowledge` and `--fit` say; None, if nothing."""
    import msgspec

    from refold.cli.commands import read_fit
    from refold.errors import BadFile, BadValue
    from refold.plans import NOTHING_MORE, Knowledge

    if file is None and not fits:
        return None
    known = NOTHING_MORE
    if file is not None:
        try:
            known = msgspec.json.decode(file.read_bytes(), type=Knowledge)
        except OSError as error:
            raise BadFile(file, f"cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, BadValue) as error:
            raise BadFile(file, f"is not what is known of speeds: {error}") from None
    known = msgspec.structs.replace(known, fits=(*known.fits, *map(read_fit, fits or ())))
    for one in known.fits:
        _check_fit(one)
    return known


def _check_fit(fitted: Fitted) -> None:
    """Speeds are corrected: what was fitted in another form says nothing of other plans."""
    from refold.errors import BadInput
    from refold.perf import CorrectedForm

    missing = [one.name for one in CorrectedForm.usual if one.name not in fitted.values]
    if missing:
        what = f"the fit of {fitted.model} on {fitted.gpu or 'no GPU'} is of the form {fitted.form}"
        raise BadInput(f"{what} and lacks {', '.join(missing)}; take what refold fit --form {CorrectedForm.name} saves")


def told(chosen: Sequence[Choice], knowledge: Knowledge | None, charging: Charging) -> list[Choice]:
    """The policies, each that has a setting for it told what is known: as plain values, which a journal can hold."""
    from dataclasses import replace

    import msgspec

    from refold.errors import BadInput
    from refold.registry import settings_of

    if knowledge is None:
        return list(chosen)
    plain: Any = msgspec.to_builtins(knowledge)
    asking = [KNOWLEDGE in settings_of(choice.policy) for choice in chosen]
    if charging.by == RECORDED and not any(asking):
        raise BadInput("--knowledge and --fit are for policies that know how fast jobs are, and none of these does")
    return [
        replace(choice, settings={KNOWLEDGE: plain, **choice.settings}) if asks else choice
        for choice, asks in zip(chosen, asking, strict=True)
    ]
