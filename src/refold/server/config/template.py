"""The `refold.yaml` that `refold init` writes: every key with its default, commented out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from refold.errors import BadFile
from refold.model import SLOT, Preemption
from refold.server.monitor import Machine

TEXT = """\
# Configuration of `refold serve`. Commented-out lines show defaults or examples; docs/config.md describes every key.
# To change a setting, remove the leading '#'. Durations are written 90s, 15m, 1h30m or 2d.

# Resources to share{found}
cluster:
{slots}#  name: localhost
#  gpus: auto            # all GPUs that the NVIDIA driver reports, or some of them: [0, 1]
#  slots: 4              # instead of gpus: number of CPU slots, for machines without GPUs
#  nodes: {{a: 4, b: 4}}   # instead of both: several simulated nodes and their slots, for trials
#  cpus: 0               # CPUs of each node; 0: CPUs are not managed
#  memory_gib: 0         # memory of each node; 0: memory is not managed

# Tenants. quota_gpus: GPUs reserved for guaranteed jobs; limit_gpus: maximum number of GPUs in use (0: no limit).
# Without tenants there are no quotas and no limits.
tenants:
#  vision: {{quota_gpus: 4, limit_gpus: 8}}
#  language: {{quota_gpus: 4}}

# Scheduling policy. `refold policies` lists policies and their settings.
policy:
#  name: refold
#  settings: {{fair_share: 1}}

# Which jobs may be stopped or reshaped for others: never, consent (best-effort and reshapable jobs, and those that save
# checkpoints or say so), or always (all that do not refuse). Without preemption, short jobs wait longer for long ones:
# `refold report` shows how much, on your own jobs. `default` alone may be written as preemption: always.
preemption:
#  default: consent
#  classes: {{best-effort: always}}

# Levels of the cluster, outermost first, and the domains of its nodes, instead of those of Slurm or Kubernetes.
topology:
#  levels: [{{name: block}}, {{name: rack}}]
#  domains: {{'a[0-15]': {{block: b0, rack: r0}}, 'a[16-31]': {{block: b0, rack: r1}}}}

# Power limits of racks. Jobs are placed so that racks stay within them, by the power of the GPUs that jobs hold.
power:
#  racks: {{r1: {{limit_watts: 3000, nodes: [a, b]}}}}   # without nodes: all nodes
#  gpu_watts: {{idle: 60, busy: 700}}     # of each GPU; default: 0 and the maximum of its data sheet
#  node_watts: {{idle: 300, busy: 800}}   # of each node without its GPUs; default: 0

# Stuck runs are flagged and, after the grace period, ended.
watch:
#  no_progress: 30m      # time without progress, for jobs that report progress
#  beyond_limit: true    # run time above the job's time limit
#  limit_grace: 5s       # the same after this time; then the stop signal, and SIGKILL after the job's grace
#  beyond_tail: 3        # run time above 3 × the predicted 99th percentile, and 1h: flagged, not ended
#  grace: 5m
#  idle: {{utilisation_below: 5, for: 30m}}   # percent; idle runs are reported once; off: never
#  bad_gpus: drain       # action on GPU hardware errors (XID, ECC): drain, warn or off
#  used_gpus: avoid      # GPUs with processes that no daemon has started: avoid, show or off
#  output:               # action if a run fails and its output matches a pattern
#    - {{pattern: 'CUDA error: uncorrectable ECC', action: drain-node}}
#    - {{pattern: 'ModuleNotFoundError', action: no-retry}}

# Notifications, to Apprise URLs (github.com/caronc/apprise). Kinds: waiting_long, started, reshaped, stopped, failed,
# finished, ended, hang_suspected, time_limit, gpu_idle, gpu_bad.
notify:
#  urls:                 # for all jobs, by kind
#    gpu_bad: [mailto://user:password@example.org]
#    failed: [slack://tokenA/tokenB/tokenC]
#  users:                # for the user's own jobs
#    ann: [ntfys://ntfy.sh/anns-jobs]
#  kinds: [waiting_long, started, reshaped, stopped, failed, finished, ended, hang_suspected, time_limit, gpu_idle]
#  waiting_long_after: 4h
#  allow: [slack, ntfys://ntfy.sh, jsons://*.example.org]     # targets in job submissions (default: all)

# The daemon itself.
serve:
#  host: 127.0.0.1       # 0.0.0.0: listen on all interfaces
#  port: 7170            # 0: any free port
#  socket: auto          # Unix socket for users of this machine: auto, off or a path
#  user: ''              # an account such as refold, if root starts the daemon: jobs run as those who submit them
#  allowed_hosts: []     # host names of this daemon besides the machine's own, such as [gpus.lab]
#  grace: 10s            # time between the stop signal and SIGKILL, unless the job sets its own
#  max_output: 64MiB     # maximum log size per process
#  keep_logs_for: 30d    # how long logs are kept after the job has ended
#  keep_jobs_for: 365d   # how long ended jobs, their events and the journal are kept
#  keep_jobs: 200000     # maximum number of ended jobs that are kept
#  keep_backups: 3       # number of daily backups of the store that are kept; 0: none is made
#  cgroup: auto          # where the cgroups of runs are created: auto (in the daemon's own), off, or a cgroup: /refold

# What the HTTP server allows.
http:
#  connections: 1024     # at most; by default fewer if the process has few file descriptors
#  body_size: 1MiB       # maximum size of a request body, up to 8MiB

# Users of this machine who may use the daemon without a token, besides its own user and root: names, '@' and a group,
# or all. They are members, who can read and change their own jobs only. Jobs run as the daemon's user: allow only
# people to whom you would give the owner token.
users:
#  allow: [ann, '@lab']  # default: none
#  tenants: {{'@vision': vision, ann: language}}   # the first match counts; others have the tenant default

# Limits of the jobs of every tenant, and of single tenants. A job that exceeds one is rejected.
limits:
#  grace: 1h             # maximum time between the stop signal and SIGKILL
#  priority: 0           # maximum priority
#  time: 2d              # maximum time limit, which is also that of jobs without one
#  array: 1000           # maximum number of tasks of an array
#  jobs: 5000            # maximum number of jobs that have not ended
#  output: 16MiB         # maximum log size per process, below serve.max_output
#  tenants: {{language: {{jobs: 10, time: 4h}}}}

# Jobs that `refold serve --on kubernetes` creates for submitted commands.
kubernetes:
#  namespace: default
#  image: pytorch/pytorch:2.10.0
#  volume_claim: checkpoints
#  levels: [topology.kubernetes.io/zone, cloud.provider.com/topology-rack]   # node labels, outermost first
#  start_timeout: 10m    # bound pods that have not started by then are ended, with their gang

# What `refold serve --on ray` reads from Ray.
ray:
#  levels: [zone, rack]  # node labels, outermost first

# Jobs that `refold serve --on slurm` submits.
slurm:
#  partition: gpu        # nodes to schedule; without it, those of all partitions
#  account: lab
#  qos: normal
#  options: [--constraint=ib]   # of sbatch
#  pool: 4               # hold this number of nodes and start runs inside; without it, each run is a job
#  pool_time: 12h        # time limit of their allocations
#  pool_jobs: [4711]     # use existing allocations
#  release_idle_after: 5m   # give back nodes of the pool that have no runs
"""


def render_template(machine: Machine, preemption: Preemption | None = None) -> str:
    """Return the template for a machine, without GPUs with a number of slots. `preemption`: the rule, if chosen."""
    text = TEXT if preemption is None else TEXT.replace("#  default: consent\n", f"  default: {preemption}\n")
    gpus = machine.gpus()
    count_of = Counter(gpu.name for gpu in gpus if gpu.gpu_type != SLOT)
    if not count_of:
        return text.format(found=". No GPUs were found on this machine.", slots=f"  slots: {max(1, len(gpus))}\n")
    found = ", ".join(f"{count} × {name}" for name, count in count_of.items())
    return text.format(found=f"; found on this machine: {found}.", slots="")


def write_template(
    path: Path, machine: Machine, preemption: Preemption | None = None, *, replace: bool = False
) -> None:
    """Write the template with mode 0600, because URLs may contain passwords; overwrite only if `replace`."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(render_template(machine, preemption))
    except FileExistsError:
        raise BadFile(path, "already exists; use --force to overwrite it") from None
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
