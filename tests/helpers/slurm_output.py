"""What Slurm's programs print, for tests without Slurm: the queue in two formats, nodes and accounting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from refold.engines.slurm.job_records import COLUMNS
from refold.engines.slurm.programs import SlurmError

NOW = 1_700_000_000
"""The time at which the queue is read."""

NO_JSON = "squeue: unrecognized option '--json'"


def job_json(number: int, gpus: int = 1, *, state: str = "PENDING", **fields: Any) -> dict[str, Any]:
    """Return a job as `squeue --json` of Slurm 22.05 prints it; the fields that are read, and one that is not."""
    nodes = fields.get("node_count", 1)
    tres = f"cpu={nodes},mem={100 * nodes}M,node={nodes},billing=1" + (f",gres/gpu={gpus}" if gpus else "")
    return {
        "job_id": number,
        "array_job_id": 0,
        "array_task_id": None,
        "array_task_string": "",
        "name": "train",
        "user_name": "ada",
        "account": "lab",
        "partition": "gpu",
        "job_state": state,
        "state_reason": "None" if state == "RUNNING" else "Priority",
        "submit_time": NOW - 3600,
        "start_time": NOW - 1800 if state == "RUNNING" else 0,
        "time_limit": 120,
        "nodes": "n0" if state == "RUNNING" else "",
        "node_count": nodes,
        "cpus": nodes,
        "tasks": nodes,
        "tres_req_str": tres,
        "tres_alloc_str": tres if state == "RUNNING" else "",
        "tres_per_job": "",
        "tres_per_node": f"gres:gpu:{gpus // nodes}" if gpus else "",
        "tres_per_task": "",
        "gres_detail": [],
        "priority": 1,
        "features": "",
        "qos": "normal",
        "licenses": "",
        "dependency": "",
        "eligible_time": NOW - 3600,
        "shared": None,
        "required_nodes": "",
        "excluded_nodes": "",
        "het_job_id": 0,
        "comment": "not read",
        **fields,
    }


def newer(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job as Slurm 24.05 prints it: numbers as mappings, the state as a list."""
    numbers = {
        key: {"set": value is not None, "infinite": False, "number": value or 0}
        for key, value in job.items()
        if key
        in (
            "array_task_id",
            "submit_time",
            "start_time",
            "time_limit",
            "node_count",
            "cpus",
            "priority",
            "eligible_time",
        )
    }
    shared = ["none"] if job["shared"] == 0 else []
    return {**job, **numbers, "job_state": [job["job_state"]], "shared": shared}


def columns_of(job: dict[str, Any]) -> str:
    """Return a job as `squeue --Format` prints it in columns of fixed width."""
    minutes = job["time_limit"]
    cells = {
        "JobArrayID": job["job_id"],
        "JobID": job["job_id"],
        "UserName": job["user_name"],
        "Account": job["account"],
        "Partition": job["partition"],
        "State": job["job_state"],
        "Reason": job["state_reason"],
        "SubmitTime": job["submit_time"],
        "StartTime": job["start_time"] or "N/A",
        "TimeLimit": f"{minutes // 60}:{minutes % 60:02}:00" if minutes else "UNLIMITED",
        "NodeList": job["nodes"],
        "NumNodes": job["node_count"],
        "NumCPUs": job["cpus"],
        "NumTasks": job["tasks"],
        "tres-alloc": job["tres_alloc_str"] or job["tres_req_str"],
        "tres-per-job": job["tres_per_job"] or "N/A",
        "tres-per-node": job["tres_per_node"] or "N/A",
        "tres-per-task": job["tres_per_task"] or "N/A",
        "PriorityLong": job["priority"],
        "Feature": job["features"] or "(null)",
        "QOS": job["qos"],
        "Licenses": job["licenses"] or "(null)",
        "Dependency": job["dependency"] or "(null)",
        "EligibleTime": job["eligible_time"] or "N/A",
        "OverSubscribe": "NO" if job["shared"] == 0 else "OK",
        "ReqNodes": job["required_nodes"],
        "ExcNodes": job["excluded_nodes"],
        "Name": job["name"],
    }
    return "".join(str(cells[name]).ljust(width) for name, width in COLUMNS.items())


def node_line(name: str, gres: str = "gpu:a100:8", **fields: str) -> str:
    """Return a node as `scontrol show nodes --oneliner --details` prints it."""
    values = {
        "NodeName": name,
        "Arch": "x86_64",
        "CPUAlloc": "0",
        "CPUEfctv": "64",
        "CPUTot": "64",
        "ActiveFeatures": "(null)",
        "Gres": gres,
        "GresDrain": "N/A",
        "GresUsed": "gpu:a100:0(IDX:N/A)",
        "OS": "Linux 6.1 #1 SMP",
        "RealMemory": "65536",
        "AllocMem": "0",
        "State": "IDLE",
        "Partitions": "gpu ",
        **fields,
    }
    return " ".join(f"{key}={value}" for key, value in values.items())


class FakePrograms:
    """Answers in place of Slurm's programs. `sacct`: what it prints; None: accounting is disabled.

    `topology`, `config`, `licences`: what `scontrol show` prints of them. `tables`: what sshare prints, and sacctmgr
    for 'qos' and 'assoc'; without one, they fail.
    """

    def __init__(
        self,
        jobs: list[dict[str, Any]],
        nodes: list[str],
        *,
        sacct: str | None = None,
        json_output: bool = True,
        topology: str = "",
        config: Mapping[str, str] | None = None,
        licences: str = "",
        tables: Mapping[str, str] | None = None,
    ) -> None:
        self.jobs, self.nodes, self.sacct, self.json_output = jobs, nodes, sacct, json_output
        self.topology = topology
        self.config, self.licences, self.tables = config or {}, licences, tables or {}
        self.calls: list[list[str]] = []

    def run(self, program: str, *arguments: str, stdin: str = "") -> str:
        """Return what a program prints."""
        self.calls.append([program, *arguments])
        if arguments[:2] == ("show", "topology"):
            return self.topology
        if arguments[:2] == ("show", "config"):
            return "".join(f"{name:24}= {value}\n" for name, value in self.config.items())
        if arguments[:2] == ("show", "licenses"):
            return self.licences
        if program in ("sshare", "sacctmgr"):
            found = self.tables.get(program if program == "sshare" else arguments[-1])
            if found is None:
                raise SlurmError(f"{program}: Access/permission denied")
            return found
        if program == "scontrol":
            return "\n".join(self.nodes) + "\n"
        if program == "sacct":
            if self.sacct is None:
                raise SlurmError("sacct: Slurm accounting storage is disabled")
            return self.sacct
        if "--json" not in arguments:
            return "".join(f"{columns_of(job)}\n" for job in self.jobs)
        if not self.json_output:
            raise SlurmError(NO_JSON)
        return json.dumps({"jobs": self.jobs, "errors": []})
