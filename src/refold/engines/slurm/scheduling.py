"""How Slurm orders jobs, as settings of the policy `slurm`: its configuration, priorities, shares and limits.

What cannot be read, because there is no slurmdbd or PrivateData hides it, is left out, and noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from refold.engines.slurm.caps import Caps, LimitedUse
from refold.engines.slurm.history import RecordedStart
from refold.engines.slurm.job_records import SlurmJob
from refold.engines.slurm.programs import Run, SlurmError
from refold.errors import BadValue
from refold.model import MINUTE, WHOLE, Job, Seconds, parse_dependencies
from refold.policies.slurm import SiteFacts, SlurmJobFacts, fair_tree
from refold.simulator.traces import BadCell, parse_time_limit

POLICY = "slurm"


class Scheduling:
    """How a site orders jobs. `notes`: what is not known of it.

    `scheduler`: settings of the policy; `site`: weights and shares. `paths`: of accounts and users among the shares.
    """

    def __init__(self, run: Run) -> None:
        """Read it. Raises SlurmError if Slurm does not answer."""
        pairs = (line.partition("=") for line in run("scontrol", "show", "config").splitlines())
        config = {name.strip(): value.strip() for name, _, value in pairs}
        self.notes: list[str] = []
        self.scheduler = _scheduler_settings(config)
        has_accounts = config.get("AccountingStorageType", "").endswith("slurmdbd")
        shares = self._read(run, "fair shares", "sshare", "--all", "--parsable2") if has_accounts else []
        self.paths, tree, usage = _shares(shares)
        self.site = _weights(config, tree, usage)
        self._preempt_type = config.get("PreemptType", "")
        self._qos: list[dict[str, str]] = []
        associations: list[dict[str, str]] = []
        if has_accounts:
            self._qos = self._read(run, "limits of QOS", "sacctmgr", "--parsable2", "show", "qos")
            associations = self._read(run, "limits of accounts", "sacctmgr", "--parsable2", "show", "assoc")
        enforced = "limits" in config.get("AccountingStorageEnforce", "")
        self.caps = Caps(self._qos, associations) if enforced else Caps()

    def _read(self, run: Run, what: str, *words: str) -> list[dict[str, str]]:
        try:
            header, *rows = run(*words).splitlines() or [""]
        except SlurmError as error:
            self.notes.append(f"{what} of Slurm are not known, and left out when its order is simulated: {error}")
            return []
        names = header.split("|")
        return [dict(zip(names, row.split("|"), strict=False)) for row in rows]

    def accounts_of(self, account: str) -> tuple[str, ...]:
        """Return an account and those above it."""
        return tuple(self.paths.get((account, ""), account).split("/"))

    def settings(self, jobs: Mapping[str, SlurmJobFacts], *, fair_share: bool = True) -> dict[str, Any]:
        """Return the settings of the policy. `fair_share`: it changes; otherwise, it is part of the priorities."""
        site = replace(self.site, limits=self.caps.limits, jobs=dict(jobs))
        if not fair_share:
            site = replace(site, fair_share_weight=0.0, shares={}, usage={})
        return {**self.scheduler, "site": msgspec.to_builtins(site)}

    @property
    def preempted_qos(self) -> frozenset[str]:
        """The QOS whose jobs are stopped for those of others, by the configuration."""
        if self._preempt_type != "preempt/qos":
            return frozenset()
        return frozenset(name for row in self._qos for name in row.get("Preempt", "").split(",") if name)


def queue_facts(scheduling: Scheduling, run: Run, jobs: Sequence[SlurmJob], now: Seconds) -> dict[str, SlurmJobFacts]:
    """Return what is known of jobs that wait or run."""
    caps = scheduling.caps
    caps.limit_arrays(jobs)
    if any(job.licenses for job in jobs):
        caps.limit_licences(run("scontrol", "show", "licenses", "--oneliner"), jobs)
    site, factors = scheduling.site, fair_tree(scheduling.site.shares, scheduling.site.usage)

    def facts(job: SlurmJob) -> SlurmJobFacts:
        user = scheduling.paths.get((job.account, job.user), "")
        eligible = job.eligible or (job.submitted if job.is_running else now)
        priority = job.priority - _age(site, now - eligible) - site.fair_share_weight * factors.get(user, 0.0)
        uses = caps.queue_uses(job, scheduling.accounts_of(job.account))
        return SlurmJobFacts(priority, eligible, user, job.billing or float(job.cpus), uses, bool(job.required_nodes))

    return {job.id: facts(job) for job in jobs}


def history_settings(
    scheduling: Scheduling, jobs: Iterable[Job], starts: Mapping[str, RecordedStart]
) -> dict[str, Any]:
    """Return the settings of the policy for jobs that have run: their priority is that at their start, without age.

    Dependencies and begin times are part of the time at which a job counts as submitted.
    """

    def facts(job: Job, start: RecordedStart) -> SlurmJobFacts:
        demand, size = job.demand, job.demand.instances
        amounts = {"jobs": 1, "node": size, "cpu": size * demand.cpu_milli // WHOLE, "mem": size * demand.memory_mib}
        amounts |= {f"gres/gpu{kind and ':'}{kind}": size * demand.gpus for kind in ("", *demand.gpu_types)}
        claim = LimitedUse(start.qos, scheduling.accounts_of(job.tenant), job.user, amounts)
        priority = start.priority - _age(scheduling.site, start.at - job.submitted)
        return SlurmJobFacts(priority, uses=scheduling.caps.uses(claim))

    known = {job.id: facts(job, starts[job.id]) for job in jobs if job.id in starts}
    for name, count in ((name, count) for each in known.values() for name, count in each.uses.items()):
        scheduling.caps.limits[name] = max(scheduling.caps.limits[name], count)  # it was higher then, or had exceptions
    return scheduling.settings(known, fair_share=False)


def _age(site: SiteFacts, waited: Seconds) -> float:
    return site.age_weight * min(max(waited, 0.0) / site.max_age, 1.0)


def _scheduler_settings(config: Mapping[str, str]) -> dict[str, Any]:
    """Return what the configuration sets; the policy has Slurm's defaults."""
    given = dict(word.partition("=")[::2] for word in config.get("SchedulerParameters", "").split(","))
    counts = {name: int(text) for name, text in given.items() if text.isdecimal() and int(text)}
    units = {"bf_interval": 1.0, "bf_window": MINUTE, "bf_resolution": 1.0}
    found: dict[str, Any] = {name: counts[name] * unit for name, unit in units.items() if name in counts}
    found |= {name: counts[name] for name in ("bf_max_job_test", "default_queue_depth") if name in counts}
    return found if config.get("SchedulerType") == "sched/backfill" else {**found, "backfill": False}


def _weights(config: Mapping[str, str], shares: dict[str, float], usage: dict[str, float]) -> SiteFacts:
    def period(name: str, default: Seconds) -> Seconds:
        try:
            return parse_time_limit(config.get(name, "")) or default
        except BadCell:
            return default

    default = SiteFacts()
    if config.get("PriorityType") != "priority/multifactor":
        return SiteFacts(age_weight=0.0)
    return SiteFacts(
        age_weight=_decimal(config.get("PriorityWeightAge", "")),
        max_age=period("PriorityMaxAge", default.max_age),
        fair_share_weight=_decimal(config.get("PriorityWeightFairShare", "")) if usage else 0.0,
        half_life=period("PriorityDecayHalfLife", default.half_life),
        calc_period=period("PriorityCalcPeriod", default.calc_period),
        shares=shares,
        usage=usage,
    )


def _shares(rows: Iterable[Mapping[str, str]]) -> tuple[dict[tuple[str, str], str], dict[str, float], dict[str, float]]:
    """Return the path of each account and user, and by path the shares of all and the usage of users.

    sshare indents accounts by their level.
    """
    paths: dict[tuple[str, str], str] = {}
    shares: dict[str, float] = {}
    usage: dict[str, float] = {}
    above: list[str] = []
    for row in rows:
        account, user = row.get("Account", ""), row.get("User", "")
        level = len(account) - len(account.lstrip())
        path = "/".join([*above[:level], f"@{user}" if user else account.strip()])
        if not user:
            above[level:] = [account.strip()]
        paths[account.strip(), user] = path
        shares[path] = _decimal(row.get("RawShares", ""))
        if user:
            usage[path] = _decimal(row.get("RawUsage", ""))
    return paths, shares, usage


def _decimal(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdecimal() else 0.0


def dependencies(text: str) -> tuple[str, ...]:
    """Return what squeue prints, such as 'afterok:17_*(unfulfilled)', as dependencies; () if it is of another kind."""
    words = [word.partition("(")[0] for word in text.split(",") if word]
    try:
        return tuple(str(each) for word in words for each in parse_dependencies(word))
    except BadValue:
        return ()
