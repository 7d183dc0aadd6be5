"""The `refold.yaml` that `refold init` writes: every section and every key, commented out where the usual will do."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from refold.backends.local import SLOT
from refold.errors import BadFile
from refold.server.monitor import Machine

TEXT = """\
# How this machine is shared. What is commented out is as usual; docs/config.md has every key.
# A line such as '#  slots: 4' is a setting: take the '#' away. Durations are written 90s, 15m, 1h30m or 2d.

# What there is to share out{found}
cluster:
{slots}#  name: localhost
#  gpus: auto            # all that NVIDIA's driver tells of, or some of them: [0, 1]
#  slots: 4              # instead of GPUs: so many stand-ins, for machines without
#  nodes: {{a: 4, b: 4}}   # instead of these: this machine as several nodes of slots, to try things out
#  cpus: 0               # CPUs to share out, of each node; 0: jobs get what they take
#  memory_gib: 0         # memory, likewise

# Who shares it. quota_gpus: what a tenant's guaranteed jobs may count on; limit_gpus: the most it may use (0: all).
# Where nobody is named, nobody is limited.
tenants:
#  vision: {{quota_gpus: 4, limit_gpus: 8}}
#  language: {{quota_gpus: 4}}

# Who decides: `refold policies` lists them with their settings.
policy:
#  name: easy
#  settings: {{most_passed: 100}}

# What easy and conservative plan with.
prediction:
#  durations: predicted  # or limit: the time limits that users gave
#  likely: 0.5           # the quantile of durations that plans are made with
#  confidence: 0.8       # the one that a job has to end by to be let past another

# Runs that go nowhere are flagged, and after the grace ended.
watch:
#  no_progress: 30m      # without a report of more steps done, from jobs that report
#  silent_too: false     # also from jobs that never have
#  beyond_limit: true    # longer than the time limit that its user gave
#  beyond_tail: 3        # three times as long as 99 of 100 such jobs were expected to last: flagged only
#  tail_at_least: 1h     # but not before this
#  end_beyond_tail: false
#  grace: 5m
#  idle: {{load_below: 5, for: 30m}}   # percent: such a run is told of once; or off
#  bad_gpus: drain       # what follows from a GPU's own errors (XID, ECC): drain, warn or off
#  output:               # what follows if a run fails with this in its output
#    - {{pattern: 'CUDA error: uncorrectable ECC', then: drain-node}}
#    - {{pattern: 'ModuleNotFoundError', then: no-retry}}

# Whom to tell, at addresses as apprise writes them (github.com/caronc/apprise). Kinds: waiting_long, started,
# reshaped, stopped, failed, finished, ended, hang_suspected, gpu_idle, gpu_bad.
notify:
#  urls:                 # of everybody's jobs, by kind
#    gpu_bad: [mailto://user:password@example.org]
#    failed: [slack://tokenA/tokenB/tokenC]
#  users:                # of their own jobs
#    ann: [ntfys://ntfy.sh/anns-jobs]
#  tell: [waiting_long, started, reshaped, stopped, failed, finished, ended, hang_suspected, gpu_idle]  # users and jobs
#  waiting_long_after: 4h

# The daemon itself.
serve:
#  host: 127.0.0.1       # others reach it only if you say so here
#  port: 7170            # 0: any that is free
#  names: []             # by which others reach it, such as [gpus.lab]; the machine's own are known
#  grace: 10s            # how long a run may take to stop, unless its job says otherwise
#  most_output: 64MiB    # kept of each process's output
#  keep_logs_for: 30d    # after the job has ended
"""


def commented(machine: Machine) -> str:
    """The text for a machine: one without GPUs starts with slots."""
    gpus = machine.gpus()
    count_of = Counter(gpu.name for gpu in gpus if gpu.gpu_type != SLOT)
    if not count_of:
        return TEXT.format(found=". No GPUs were found here.", slots=f"  slots: {max(1, len(gpus))}\n")
    found = ", ".join(f"{count} × {name}" for name, count in count_of.items())
    return TEXT.format(found=f"; found here: {found}.", slots="")


def write_commented(path: Path, machine: Machine, *, replace: bool = False) -> None:
    """Write it for its owner's eyes: addresses may hold passwords. Over a file that is there only if that is wanted."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(commented(machine))
    except FileExistsError:
        raise BadFile(path, "is there already; --force writes a new one over it") from None
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
