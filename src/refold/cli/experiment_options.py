"""Groups of options that describe an experiment, except its policies: shared by `simulate`, `compare` and others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli.declare import option, switch
from refold.cli.options import (
    WatchOption,
    complete_formats,
    parse_duration_option,
    parse_optional_duration,
    require_option,
)
from refold.cli.views import progress

if TYPE_CHECKING:
    from refold.model import Cluster
    from refold.simulator import Costs
    from refold.simulator.traces import Trace


GPUS_PER_INSTANCE = 8
"""Default GPUs per instance without a cluster."""

MAX_SEED = 2**62

DEFAULT_STOP_COST, DEFAULT_RESTART_COST = "30s", "2m"
"""Overheads unless options say otherwise: a job saves a checkpoint, and later loads it on other nodes."""


class PreemptionMode(StrEnum):
    """Which jobs of a trace may be stopped or reshaped for others."""

    CONSENT = "consent"
    ALWAYS = "always"
    NEVER = "never"


def max_gpus_per_node(cluster: Cluster) -> int:
    """Return the largest number of GPUs of a node; the default without a cluster if no node has GPUs."""
    return max(node.gpus for node in cluster.nodes) or GPUS_PER_INSTANCE


@dataclass(frozen=True, slots=True)
class TraceFormatOptions:
    format: Annotated[
        str | None,
        option("NAME", "Trace format, see 'refold trace formats' (default: auto-detect).", complete=complete_formats),
    ] = None
    skip_bad: Annotated[bool, switch("--skip-bad", "Skip and count invalid rows.")] = False
    gpus_per_instance: Annotated[
        int | None,
        option(
            "N",
            "Split jobs that have only a total of GPUs into instances of at most this many (default: the "
            "GPUs of the largest node, or 8).",
            min=1,
        ),
    ] = None

    def read(self, trace: str, gpus_per_instance: int = GPUS_PER_INSTANCE) -> Trace:
        """Read a trace. `gpus_per_instance` applies if the option is not given."""
        from refold.simulator.traces import read_trace

        each = self.gpus_per_instance or gpus_per_instance
        with progress(f"reading {trace}"):
            return read_trace(trace, format=self.format, skip_bad=self.skip_bad, gpus_per_instance=each)


@dataclass(frozen=True, slots=True)
class TraceOptions(TraceFormatOptions):
    """How to read a trace, and how many of its jobs to use."""

    limit: Annotated[int | None, option("JOBS", "Use only the first JOBS jobs.", min=1)] = None
    gpu_types: Annotated[
        str | None,
        option(
            "ignore|FILE",
            "Requested GPU types: ignore them, or map them to the cluster's by a YAML file (default: find"
            " them by name).",
        ),
    ] = None

    def adapt(self, trace: Trace, cluster: Cluster) -> Trace:
        """Return the trace with the GPU types of the cluster."""
        from refold.simulator.traces import adapt_to_cluster, ignore_gpu_types, read_gpu_type_map

        if self.gpu_types == "ignore":
            return adapt_to_cluster(ignore_gpu_types(trace), cluster)
        mapped = None if self.gpu_types is None else read_gpu_type_map(Path(self.gpu_types), cluster)
        return adapt_to_cluster(trace, cluster, mapped)


@dataclass(frozen=True, slots=True)
class OverheadOptions:
    """Overheads of starting, stopping and restarting runs."""

    start_cost: Annotated[str | None, option("TIME", "Overhead of a job's first start (default: 0).")] = None
    stop_cost: Annotated[str | None, option("TIME", "Overhead of stopping a run (default: 0).")] = None
    restart_cost: Annotated[str | None, option("TIME", "Overhead of every later start (default: --start-cost).")] = None

    def given(self) -> dict[str, str | None]:
        return {"--start-cost": self.start_cost, "--stop-cost": self.stop_cost, "--restart-cost": self.restart_cost}

    def parse(self) -> Costs:
        from refold.simulator import Costs

        seconds = {option: parse_duration_option(option, text or "0") for option, text in self.given().items()}
        restart = "--start-cost" if self.restart_cost is None else "--restart-cost"
        return Costs(start=seconds["--start-cost"], stop=seconds["--stop-cost"], restart=seconds[restart])


@dataclass(frozen=True, slots=True)
class CostOptions(OverheadOptions):
    """Overheads of runs, and their checkpoint and report intervals."""

    stop_cost: Annotated[str | None, option("TIME", "Overhead of stopping a run.")] = DEFAULT_STOP_COST
    restart_cost: Annotated[str | None, option("TIME", "Overhead of every later start.")] = DEFAULT_RESTART_COST
    live_cost: Annotated[
        str | None,
        option(
            "TIME",
            "Overhead of changing a reshapable job on its nodes, or of losing one of several, with its "
            "state in memory (default: it is restarted).",
        ),
    ] = None
    checkpoint_every: Annotated[
        str | None,
        option(
            "TIME",
            "Checkpoint interval: runs lost to node faults resume from the last checkpoint (default: no checkpoints).",
        ),
    ] = None
    report_every: Annotated[str | None, option("TIME", "Progress report interval (default: only when runs stop).")] = (
        None
    )
    report_speeds: Annotated[
        bool,
        switch(
            "--report-speeds",
            "Reports of jobs with steps and a batch size include their speed, from which policies learn.",
        ),
    ] = False

    def parse(self) -> Costs:
        from msgspec.structs import replace

        checkpoint_every = parse_optional_duration("--checkpoint-every", self.checkpoint_every)
        report_every = parse_optional_duration("--report-every", self.report_every)
        if self.report_speeds and report_every is None:
            require_option("--report-every", {"--report-speeds": True}, "speeds are part of progress reports")
        overheads = OverheadOptions.parse(self)
        return replace(
            overheads,
            live=parse_optional_duration("--live-cost", self.live_cost),
            checkpoint_every=checkpoint_every,
            report_every=report_every,
            report_speeds=self.report_speeds,
        )


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """The job speeds that the simulator charges, and those that policies know."""

    charge: Annotated[
        str | None,
        option(
            "recorded|model|FILE",
            "Simulated job speed: as recorded, by the performance model, or from a CSV file of measured "
            "samples (default: model, for reshapable jobs in the catalogue).",
        ),
    ] = None
    knowledge: Annotated[
        Path | None, option("FILE", "JSON file with performance data in addition to the catalogue.")
    ] = None
    fits: Annotated[
        list[Path] | None, option("FILE", "File saved by 'refold fit', for policies and model; repeatable.", "--fit")
    ] = None


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Random node faults."""

    faults: Annotated[
        str | None, option("TIME", "Mean time between faults per node (default: no faults).", "--faults", "--mtbf")
    ] = None
    repair: Annotated[str | None, option("TIME", "Mean time to repair a node (default: 1h).")] = None
    fault_seed: Annotated[int | None, option("N", "Random seed of the faults (default: 0).", min=0, max=MAX_SEED)] = (
        None
    )

    def check(self, checkpoint_every: str | None) -> None:
        """Reject options about faults if --faults is not given."""
        if self.faults is None:
            dependent = {
                "--checkpoint-every": checkpoint_every,
                "--repair": self.repair,
                "--fault-seed": self.fault_seed,
            }
            require_option("--faults", dependent, "the mean time between faults per node, such as --faults 30d")


@dataclass(frozen=True, slots=True)
class NeverEndingOptions:
    """Random jobs that never end by themselves."""

    stuck: Annotated[float | None, option("SHARE", "Share of jobs that hang (default: 0).", min=0.0, max=1.0)] = None
    endless: Annotated[
        float | None,
        option("SHARE", "Share of jobs that never end but keep reporting progress (default: 0).", min=0.0, max=1.0),
    ] = None
    stuck_seed: Annotated[
        int | None, option("N", "Random seed of --stuck and --endless (default: 0).", min=0, max=MAX_SEED)
    ] = None

    def check(self, report_every: str | None) -> None:
        """Reject --stuck-seed without jobs that never end, and --endless without progress reports."""
        if not self.stuck and not self.endless:
            dependent = {"--stuck-seed": self.stuck_seed}
            require_option("--stuck or --endless", dependent, "the share of jobs that never end, such as 0.02")
        if report_every is None:
            require_option("--report-every", {"--endless": self.endless}, "an endless job keeps reporting progress")


@dataclass(frozen=True, slots=True)
class PreemptionOptions:
    """Which jobs may be stopped or reshaped for others."""

    preemption: Annotated[
        PreemptionMode,
        option(
            "MODE",
            "Jobs that may be stopped or reshaped for others: consent (as in the daemon: best-effort and "
            "reshapable jobs, unless they refuse), always or never.",
        ),
    ] = PreemptionMode.CONSENT


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Everything in an experiment except the trace, the cluster and the policies."""

    trace: TraceOptions
    consent: PreemptionOptions
    costs: CostOptions
    speeds: SpeedOptions
    faults: FaultOptions
    never_ending: NeverEndingOptions
    watch: WatchOption = None
