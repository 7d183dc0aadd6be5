"""Read `refold.yaml`. The types in `settings` check single values; what concerns several of them is checked here."""

from __future__ import annotations

from pathlib import Path

from refold.errors import BadValue
from refold.model.documents import Part, convert, load_yaml, read_text
from refold.server.config.settings import Config, WatchConfig

REMOVED = {
    "prediction": "its keys are settings of the policies easy and conservative; write them to policy.settings",
    "watch.silent_too": "job files may set no_progress for jobs that always report progress",
    "watch.tail_at_least": "it is always 1h",
    "watch.end_beyond_tail": "such runs are only reported; give jobs a time limit to have them ended",
    "serve.backup_every": "a backup is made once a day; for others, run 'refold backup'",
    "http.connections_per_address": "it is always half of http.connections",
    "http.header_size": "it is always 32KiB",
    "http.headers": "it is always 100",
    "http.header_timeout": "it is always 10s",
    "http.body_timeout": "it is always 30s",
    "http.write_timeout": "it is always 60s",
    "http.idle_timeout": "it is always 5s",
}
"""Settings that earlier versions had, and what to do without them."""


def read_config(path: Path) -> Config:
    """Read a configuration file. Missing keys have their defaults."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, source: str) -> Config:
    """Parse the text of a configuration file; `source` names it in errors."""
    root = load_yaml(text, source)
    _check_removed(root)
    file = convert(root, Config)
    _check_cluster(root.at("cluster"))
    _check_watch(root.at("watch"), file.watch)
    _check_power(root.at("power"), file)
    _check_users(root.at("users"), file)
    for tenant in file.limits.tenants:
        _check_tenant(root.at("limits", "tenants", tenant), tenant, file)
    for tenant in file.preemption.tenants:
        _check_tenant(root.at("preemption", "tenants", tenant), tenant, file)
    return file


def _check_removed(root: Part) -> None:
    for path, advice in REMOVED.items():
        section, _, key = path.rpartition(".")
        part = root.at(section) if section else root
        if (part is not root or not section) and part.has(key):
            raise part.at(key).error(f"no longer a setting: {advice}")


def _check_cluster(part: Part) -> None:
    keys = [key for key in ("gpus", "slots", "nodes") if part.has(key)]
    if len(keys) > 1:
        raise part.error(f"{' and '.join(keys)} are mutually exclusive")


def _check_power(part: Part, file: Config) -> None:
    """Check that no node is in two racks, and that watts have an effect."""
    racks = file.power.racks
    if not racks:
        for key in ("gpu_watts", "node_watts"):
            if part.has(key):
                raise part.at(key).error("has no effect: no racks are configured")
        return
    rack_of: dict[str, str] = {}
    for name, rack in racks.items():
        for node in rack.nodes:
            if node in rack_of:
                raise part.at("racks", name, "nodes").error(f"node {node!r} is already in rack {rack_of[node]!r}")
            rack_of[node] = name


def _check_users(part: Part, file: Config) -> None:
    for entry, tenant in file.users.tenants.items():
        _check_tenant(part.at("tenants", entry), tenant, file)


def _check_tenant(part: Part, tenant: str, file: Config) -> None:
    known = {"default", *(known.name for known in file.tenants)}
    if file.tenants and tenant not in known:
        raise part.error(f"unknown tenant {tenant!r}; known tenants: {', '.join(sorted(known))}")


def _check_watch(part: Part, watch: WatchConfig) -> None:
    if watch.rules and part.value:
        from refold.policies.common import WatchRules  # slow to import

        try:
            WatchRules(**watch.rules)
        except BadValue as error:
            raise part.error(error) from None
