"""`refold learn`: train the weights of the policy `learned` on job histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import (
    TraceNames,
    TraceOptions,
    max_gpus_per_node,
    parse_duration_option,
    with_option_groups,
    write_atomically,
)
from refold.cli.views import AsJson, Column, Table, plural, print_json, print_line, print_tables, progress

if TYPE_CHECKING:
    from refold.policies.learned import Parameters
    from refold.research import EvolutionState, JobHistory, LearningOptions, TrainingSlice

STATE_SUFFIX = ".state"
"""Suffix of the file beside the weights from which training continues."""


@dataclass(frozen=True, slots=True)
class _TrainingOptions:
    """How to train."""

    slices: Annotated[int, typer.Option("--slices", min=1, metavar="N", help="Slices of the traces to train on.")] = 24
    jobs_per_slice: Annotated[int, typer.Option("--jobs-per-slice", min=10, metavar="N", help="Jobs of a slice.")] = (
        1500
    )
    generations: Annotated[
        int, typer.Option("--generations", min=1, metavar="N", help="Generations of the evolution strategy.")
    ] = 60
    population: Annotated[int, typer.Option("--population", min=4, metavar="N", help="Samples of a generation.")] = 12
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Slices on which each sample is simulated.")
    ] = 6
    hidden: Annotated[
        int, typer.Option("--hidden", min=0, max=16, metavar="N", help="Hidden units of the score (0: it is linear).")
    ] = 0
    restart_cost: Annotated[
        str, typer.Option("--restart-cost", metavar="TIME", help="Overhead of every start but the first.")
    ] = "78s"
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="SEED", help="Random seed.")] = 0

    def parse(self) -> LearningOptions:
        """Return the options of the training."""
        from refold.research import LearningOptions

        return LearningOptions(
            slices=self.slices,
            jobs_per_slice=self.jobs_per_slice,
            generations=self.generations,
            population=self.population,
            batch=self.batch,
            hidden=self.hidden,
            restart_seconds=parse_duration_option("--restart-cost", self.restart_cost),
            seed=self.seed,
        )


@with_option_groups
def learn(
    *,
    traces: TraceNames,
    cluster: Annotated[
        list[str],
        typer.Option(
            "--cluster", metavar="CLUSTER", help="Cluster file or NODESxGPUS: one for all traces, or one for each."
        ),
    ],
    reading: TraceOptions,
    training: _TrainingOptions,
    start: Annotated[
        Path | None, typer.Option("--start", metavar="FILE", help="Weights to start from (default: a simple rule).")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, metavar="N", help="Number of processes.")] = 1,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Weights to write.")] = Path("weights.yaml"),
    as_json: AsJson = False,
) -> None:
    """Train the weights of the policy 'learned' on job histories.

    An evolution strategy simulates random slices of the traces under many weights, and moves towards those with short
    delays: mean, 99th percentile, and mean of wide jobs, each relative to the best of some simple rules. An interrupted
    training continues from FILE.state. Use the weights with --policy learned --set weights=FILE.

    Example: refold learn history.csv --cluster cluster.yaml --out weights.yaml
    """
    options = training.parse()
    histories = _read_histories(traces, cluster, reading)
    first = _first_parameters(start)
    fingerprint = _fingerprint(histories, options, first)
    state = _read_state(out, fingerprint)
    with progress("drawing slices", options.slices) as advance:
        slices = _draw(histories, options, advance)
    summary, learned = _train(slices, options, first, state, workers, out, fingerprint)
    _write_weights(out, learned)
    if as_json:
        print_json({**summary, "weights": str(out), "traces": traces})
        return
    _print_summary(summary, out)


def _read_histories(traces: Sequence[str], clusters: Sequence[str], reading: TraceOptions) -> list[JobHistory]:
    from refold.errors import BadInput
    from refold.research import JobHistory
    from refold.traces import read_cluster

    if len(clusters) not in (1, len(traces)):
        raise BadInput(f"{plural(len(traces), 'trace')} and {plural(len(clusters), 'cluster')}: give one, or one each")
    histories = []
    for index, trace in enumerate(traces):
        hardware = read_cluster(clusters[index % len(clusters)])
        read = reading.adapt(reading.read(trace, max_gpus_per_node(hardware)), hardware)
        histories.append(JobHistory(read.name, read.jobs[: reading.limit], hardware))
    return histories


def _first_parameters(start: Path | None) -> Parameters:
    from refold.documents import read
    from refold.policies.learned import Parameters
    from refold.research import START

    return START if start is None else read(start, Parameters)


def _draw(histories: Sequence[JobHistory], options: LearningOptions, advance: Any) -> list[TrainingSlice]:
    from refold.research import draw_slices

    slices = []
    for part in draw_slices(histories, options):
        slices.append(part)
        advance()
    return slices


def _train(
    slices: Sequence[TrainingSlice],
    options: LearningOptions,
    first: Parameters,
    state: EvolutionState | None,
    workers: int,
    out: Path,
    fingerprint: str,
) -> tuple[dict[str, Any], Parameters]:
    """Train, and save the state after each generation; return a summary and the better of first and last weights."""
    from refold.cli import stoppable
    from refold.research import cost_function, first_state, from_vector, mean_cost, train

    current = state or first_state(first, options)
    done = current.generation
    with (
        stoppable(f"the same command continues with what is in {_state_file(out)}"),
        cost_function(slices, options, workers) as costs_of,
        progress("training", max(options.generations - done, 0)) as advance,
    ):
        for after in train(slices, options, costs_of, current):
            current = after.state
            _write_state(out, fingerprint, current)
            advance()
        learned = from_vector(current.mean)
        costs = [mean_cost(slices, costs_of, parameters) for parameters in (first, learned)]
    summary = {
        "slices": [part.name for part in slices],
        "generations": current.generation,
        "resumed_at": done,
        "cost_before": costs[0],
        "cost_after": costs[1],
    }
    return summary, learned if costs[1] < costs[0] else first


def _fingerprint(histories: Sequence[JobHistory], options: LearningOptions, first: Parameters) -> str:
    """Return a hash of everything but the number of generations, by which a state of the same training is known."""
    from hashlib import sha256

    import msgspec

    jobs = [[(job.submitted, job.work, job.demand) for job in history.jobs] for history in histories]
    clusters = [history.cluster for history in histories]
    same = msgspec.structs.replace(options, generations=0)
    return sha256(msgspec.json.encode((jobs, clusters, same, first))).hexdigest()


def _state_file(out: Path) -> Path:
    return out.with_name(out.name + STATE_SUFFIX)


def _read_state(out: Path, fingerprint: str) -> EvolutionState | None:
    """Return the state from which training continues; None: there is none."""
    import msgspec

    from refold.errors import BadFile
    from refold.research import EvolutionState

    file = _state_file(out)
    if not file.exists():
        return None
    try:
        found, state = msgspec.json.decode(file.read_bytes(), type=tuple[str, EvolutionState])
    except (OSError, msgspec.MsgspecError) as error:
        raise BadFile(file, f"cannot be read: {error}") from None
    if found != fingerprint:
        raise BadFile(file, "is the state of a training on other traces or with other options; remove it first")
    return state


def _write_state(out: Path, fingerprint: str, state: EvolutionState) -> None:
    import msgspec

    write_atomically(_state_file(out), msgspec.json.encode((fingerprint, state)))


def _write_weights(out: Path, learned: Parameters) -> None:
    import msgspec

    write_atomically(out, msgspec.yaml.encode(learned))


def _print_summary(summary: dict[str, Any], out: Path) -> None:
    from math import exp

    rows = [("start", summary["cost_before"]), ("trained", summary["cost_after"])]
    columns: list[Column[tuple[str, float]]] = [
        Column("weights", lambda row: row[0], whole=True),
        Column("delay / best simple rule", lambda row: f"{exp(row[1]):.3f}", number=True),
    ]
    title = f"{plural(summary['generations'], 'generation')} on {plural(len(summary['slices']), 'slice')}"
    print_tables(Table(title, columns, rows))
    if summary["cost_after"] >= summary["cost_before"]:
        print_line("training found nothing better than the weights it started from, which are kept")
    print_line(f"weights: {out}")
