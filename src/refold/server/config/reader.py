"""Read `refold.yaml`. The types in `settings` check single values; what concerns several of them is checked here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from refold.errors import BadValue
from refold.model.documents import Part, convert, load_yaml, read_text
from refold.server.config.settings import Config, PolicyConfig, WatchConfig
from refold.server.config.values import Quantile


class PredictionConfig(msgspec.Struct, frozen=True):
    """Settings of policies that predict run times."""

    durations: Literal["predicted", "limit"] | None = None
    duration_quantile: Quantile | None = None
    confidence: Quantile | None = None


class ConfigFile(Config, frozen=True):
    """The sections of the file."""

    prediction: PredictionConfig = PredictionConfig()


def read_config(path: Path) -> Config:
    """Read a configuration file. Missing keys have their defaults."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, source: str) -> Config:
    """Parse the text of a configuration file; `source` names it in errors."""
    root = load_yaml(text, source)
    file = convert(root, ConfigFile)
    _check_cluster(root.at("cluster"))
    _check_watch(root.at("watch"), file.watch)
    _check_power(root.at("power"), file)
    _check_users(root.at("users"), file)
    for tenant in file.limits.tenants:
        _check_tenant(root.at("limits", "tenants", tenant), tenant, file)
    for tenant in file.preemption.tenants:
        _check_tenant(root.at("preemption", "tenants", tenant), tenant, file)
    sections = {name: getattr(file, name) for name in Config.__struct_fields__}
    return Config(**sections | {"policy": _apply_prediction(root, file)})


def _check_cluster(part: Part) -> None:
    keys = [key for key in ("gpus", "slots", "nodes") if part.has(key)]
    if len(keys) > 1:
        raise part.error(f"{' and '.join(keys)} are mutually exclusive")


def _check_power(part: Part, file: ConfigFile) -> None:
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


def _check_users(part: Part, file: ConfigFile) -> None:
    for entry, tenant in file.users.tenants.items():
        _check_tenant(part.at("tenants", entry), tenant, file)


def _check_tenant(part: Part, tenant: str, file: ConfigFile) -> None:
    known = {"default", *(known.name for known in file.tenants)}
    if file.tenants and tenant not in known:
        raise part.error(f"unknown tenant {tenant!r}; known tenants: {', '.join(sorted(known))}")


def _check_watch(part: Part, watch: WatchConfig) -> None:
    if not watch.rules:
        for key in ("silent_too", "tail_at_least", "end_beyond_tail"):
            if part.has(key):
                raise part.at(key).error("has no effect: the rule that it modifies is off")
    elif part.value:
        from refold.policies.common import WatchRules  # slow to import

        try:
            WatchRules(**watch.rules)
        except BadValue as error:
            raise part.error(error) from None


def _apply_prediction(root: Part, file: ConfigFile) -> PolicyConfig:
    """Return the policy with the keys of `prediction` as settings. Raises if the policy lacks one of them."""
    given: dict[str, Any] = {
        key: value for key, value in msgspec.structs.asdict(file.prediction).items() if value is not None
    }
    if not given:
        return file.policy
    from refold.simulator import default_settings

    known = default_settings(file.policy.name)
    for key in given:
        part = root.at("prediction", key)
        if key not in known:
            raise part.error(
                f"policy {file.policy.name!r} has no setting {key!r}; the policies easy and conservative have it"
            )
        if key in file.policy.settings:
            raise part.error(f"also set by policy.settings.{key}; set it once")
    return PolicyConfig(file.policy.name, {**file.policy.settings, **given})
