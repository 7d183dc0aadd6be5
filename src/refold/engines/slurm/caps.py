"""What jobs may use at once: limits of QOS, accounts and arrays, and licences, as limits of the policy `slurm`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from refold.engines.slurm.job_records import SlurmJob
from refold.simulator.traces import BadCell, parse_memory_mib, parse_tres

QOS_LIMITS = {
    "GrpTRES": "",
    "GrpJobs": "",
    "MaxTRESPU": "user",
    "MaxJobsPU": "user",
    "MaxTRESPA": "account",
    "MaxJobsPA": "account",
}
"""Limits of a QOS, and by what the jobs are grouped that share one."""


class LimitedUse(msgspec.Struct, frozen=True):
    """What a job takes of limited amounts. `accounts`: its own, and those above it. `amounts`: by TRES, and `jobs`."""

    qos: str
    accounts: tuple[str, ...]
    user: str
    amounts: Mapping[str, int]

    @property
    def groups(self) -> list[str]:
        """What may have limits for this job."""
        association = f"account {self.accounts[-1]} user {self.user}"
        return [f"qos {self.qos}", *(f"account {name}" for name in self.accounts), association]


class Cap(msgspec.Struct, frozen=True):
    """The most that jobs may use at once. `group_by`: '', `user` or `account`: which jobs share it."""

    name: str
    group_by: str
    amounts: dict[str, int]


class Caps:
    """The limits of a site. `limits` are those that apply to the jobs that were asked for."""

    def __init__(self, qos: Iterable[Mapping[str, str]] = (), associations: Iterable[Mapping[str, str]] = ()) -> None:
        """`qos`, `associations`: the rows of `sacctmgr show`."""
        self._caps: dict[str, list[Cap]] = {}
        self.limits: dict[str, int] = {}
        for row in qos:
            group = f"qos {row.get('Name', '')}"
            self._caps[group] = [
                Cap(f"{group} {key}", by, _amounts(row.get(key, ""))) for key, by in QOS_LIMITS.items()
            ]
        for row in associations:
            group = f"account {row.get('Account', '')}" + (f" user {row['User']}" if row.get("User") else "")
            self._caps[group] = [
                Cap(f"{group} {key}", "", _amounts(row.get(key, ""))) for key in ("GrpTRES", "GrpJobs")
            ]

    def uses(self, claim: LimitedUse) -> dict[str, int]:
        """Return what a job takes of each limit."""
        found: dict[str, int] = {}
        owners = {"": "", "user": f" of {claim.user}", "account": f" of {claim.accounts[-1]}"}
        for cap in (cap for group in claim.groups for cap in self._caps.get(group, ())):
            for resource, limit in cap.amounts.items():
                name = f"{cap.name} {resource}{owners[cap.group_by]}"
                self.limits[name], found[name] = limit, claim.amounts.get(resource, 0)
        return found

    def limit_arrays(self, jobs: Iterable[SlurmJob]) -> None:
        """Take the limits of waiting arrays from their ids: '17_[0-5%2]'."""
        for job in jobs:
            array, _, tasks = job.id.rstrip("]").partition("_[")
            if tasks.partition("%")[2].isdecimal():
                self.limits[_array_limit(array)] = int(tasks.partition("%")[2])

    def limit_licences(self, text: str, jobs: Iterable[SlurmJob]) -> None:
        """Take the licences from `scontrol show licenses`: all but those that others than these jobs hold."""
        held: Counter[str] = Counter()
        for job in jobs:
            held.update(_licence_counts(job.licenses) if job.is_running else {})
        for line in text.splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            name, total, used = (fields.get(key, "") for key in ("LicenseName", "Total", "Used"))
            if total.isdecimal() and used.isdecimal():
                self.limits[f"licence {name}"] = int(total) - max(0, int(used) - held[name])

    def queue_uses(self, job: SlurmJob, accounts: tuple[str, ...]) -> dict[str, int]:
        """Return what a job of the queue takes of each limit, with its licences, and its place among array tasks."""
        amounts = {
            "jobs": 1,
            "cpu": job.cpus,
            "node": job.node_count,
            "mem": job.memory_mib,
            "gres/gpu": job.gpus.total,
        }
        amounts |= {f"gres/gpu:{kind}": job.gpus.total for kind in job.gpus.types}
        found = self.uses(LimitedUse(job.qos, accounts, job.user, amounts))
        found |= {f"licence {name}": count for name, count in _licence_counts(job.licenses).items()}
        array = _array_limit(job.id.partition("_")[0])
        return {**found, array: 1} if array in self.limits else found


def _array_limit(array: str) -> str:
    return f"array {array}"


def _amounts(text: str) -> dict[str, int]:
    """Parse 'gres/gpu=8,cpu=64' or a number of jobs."""
    if text.isdecimal():
        return {"jobs": int(text)}
    try:
        return {name: _amount(name, value) for name, value in parse_tres(text, "limit").items()}
    except (BadCell, ValueError):
        return {}


def _amount(name: str, value: str) -> int:
    return parse_memory_mib(value, 1, 1) if name == "mem" else int(value)


def _licence_counts(text: str) -> dict[str, int]:
    """Parse 'solver:1,matlab@server:2'. Of alternatives ('a|b') it is not known which one a job gets."""
    pairs = (word.replace("=", ":").partition(":") for word in text.split(",") if word and "|" not in text)
    return {name: int(count) if count.isdecimal() else 1 for name, _, count in pairs}
