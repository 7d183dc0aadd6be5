"""The log keeper: a shell beside a run that writes the output of an instance to its log, of bounded size.

It reads a pipe, belongs to the run, and outlives the daemon. The log is written by `dd`, so many blocks that it stays
below half of the limit, whatever the sizes of writes; then the log replaces the older half. If `dd` is killed, it is
started again. What cannot be written is dropped: a full disk does not stop the run. The shell is started again, too, if
it cannot start a process: dash ends then, and the process would get SIGPIPE.
"""

from __future__ import annotations

from pathlib import Path

from refold.server.output import RunFiles

# Arguments: what the paths of the logs of the job's runs begin with, the number of the run, what they end with,
# and half of the limit in bytes. `$0` is this text. Input is the pipe.
#
# After a live change the log of the next run is the one to write to: it is the same file, renamed. Its existence is
# checked after the file was opened, so that nothing is written under the old name once it has been renamed.
SCRIPT = """\
trap '' HUP INT TERM USR1 USR2
trap 'read -r _refold_lost; exec /bin/sh -c "$0" "$0" "$@"' EXIT
block=$(($4 / 128 + 1))
[ "$block" -le 65536 ] || block=65536

copy() {
    copied=$(LC_ALL=C command -p dd bs="$block" count="$1" 2>&1 >&3) || return "$(($? < 128))"  # 0: killed
    copied=${copied%% records in*}  # maybe after a warning of partial reads
    [ "$((${copied##*[!0-9+]}))" -eq "$1" ] || return 3
}
rotate() {
    { read -r gone <"$1.gone"; } || gone=0
    printf '%d\\n' "$((gone + $2))" >"$1.gone.new"
    command -p mv -f "$1" "$1.1"
    command -p mv -f "$1.gone.new" "$1.gone"
}
keep() {
    [ ! -e "$2" ] || return 0
    size=$(command -p wc -c <"$1") || return 1
    if [ "$((size + $3 / 8))" -ge "$3" ]; then rotate "$1" "$size"; return 0; fi
    copy "$((($3 - size) / block))"
}

run=$2
while :; do
    while [ -e "$1$((run + 1))$3" ]; do run=$((run + 1)); done
    keep "$1$run$3" "$1$((run + 1))$3" "$4" 3>>"$1$run$3"
    end=$?
    case $end in 0 | 3) ;; *) copy 1 3>/dev/null; end=$? ;; esac
    if [ "$end" -eq 3 ]; then trap - EXIT; exit; fi
done
"""


def keeper_arguments(files: RunFiles, instance: int, limit: int) -> list[str]:
    """Return the script and its arguments. `limit`: what is stored at most, in bytes."""
    log: Path = files.log(instance)
    beginning, _, end = log.name.partition(str(files.run))
    return [SCRIPT, f"{log.parent}/{beginning}", str(files.run), end, str(max(1, limit // 2))]
