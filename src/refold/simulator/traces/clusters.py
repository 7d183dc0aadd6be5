"""Read and write clusters: YAML, the CSV node lists of public traces, and shorthand such as '16x8:A100'."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import yaml

from refold.errors import BadFile, BadInput, BadValue
from refold.model import (
    ETHERNET,
    PCIE,
    RACK_LEVEL,
    WHOLE,
    Cluster,
    GpuType,
    Level,
    Link,
    Node,
    Rack,
    Tenant,
    mib_from_gib,
    milli_from_number,
)
from refold.model.documents import Limits, Part, convert, load_yaml
from refold.simulator.traces.shorthand import MAX_NODES, UNKNOWN_GPU_TYPE, from_shorthand, is_shorthand
from refold.simulator.traces.text_source import (
    BadCell,
    TextSource,
    TextTable,
    int_if_whole,
    open_source,
    parse_number,
    parse_whole,
)

_RANGE = re.compile(r"(.*)\[([\d,-]+)\](.*)", re.ASCII)
MAX_DIGITS = 18
"""Maximum digits of a node number in a range such as 'a[0-15]'."""

_YAML_ENDINGS = (".yaml", ".yml", ".json")


def read(path: str | Path) -> Cluster:
    """Read a cluster from a file, or, if no such file exists, from shorthand or by the name of a shipped cluster."""
    text = str(path)
    if not text.strip() or path == Path():
        raise BadInput("the cluster name is empty; give a file, 'demo', or shorthand such as 16x8:A100")
    if not Path(path).exists():
        if is_shorthand(text):
            return from_shorthand(text)
        known = files(__package__) / "shipped" / f"{text}.yaml"
        if known.is_file() and "/" not in text:
            with as_file(known) as shipped:
                return _from_yaml(open_source(shipped))
        raise BadFile(path, "no such file, and not shorthand such as 16x8:A100 (16 nodes with 8 A100s each)")
    source = open_source(Path(path))
    if Path(path).name.removesuffix(".gz").endswith(_YAML_ENDINGS) or "," not in source.first_line:
        return _from_yaml(source)
    return _from_csv(source)


# --- YAML ---------------------------------------------------------------------------------------------------


LIMITS = Limits(max_bytes=2**26, max_parts=2_000_000)
"""Limits of a cluster file: all nodes may be listed one by one."""


class _NodeEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One node of the file, or several nodes that differ only in their number."""

    name: str
    count: int | None = None
    gpus: int = 0
    gpu_type: str = ""
    cpus: float | None = None
    memory_gib: float | None = None
    rack: str = ""
    inside: Link = PCIE
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    domains: dict[str, str] = {}


class _ClusterEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The root of the file."""

    nodes: list[_NodeEntry]
    name: str = ""
    network: Link = ETHERNET
    gpu_types: list[GpuType] = []
    racks: list[Rack] = []
    cpus_known: bool | None = None
    memory_known: bool | None = None
    tenants: list[Tenant] = []
    levels: list[Level] = []


def _from_yaml(source: TextSource) -> Cluster:
    root = load_yaml(source.text, str(source.path), LIMITS)
    entry = convert(root, _ClusterEntry)
    cpus_known = _is_known(root, entry.cpus_known, "cpus", [node.cpus for node in entry.nodes])
    memory_known = _is_known(root, entry.memory_known, "memory_gib", [node.memory_gib for node in entry.nodes])
    _check_racks(root, entry)
    levels = [level.name for level in entry.levels]
    nodes = [node for index, one in enumerate(entry.nodes) for node in _nodes(root.at("nodes", index), one, levels)]
    try:
        return Cluster(
            tuple(nodes),
            tuple(entry.gpu_types),
            tuple(entry.racks),
            entry.network,
            entry.name or source.name,
            cpus_known,
            memory_known,
            tuple(entry.tenants),
            tuple(entry.levels),
        )
    except BadValue as error:
        raise root.error(error) from None


def _is_known(root: Part, stated: bool | None, key: str, amounts: list[float | None]) -> bool:
    """Return whether an amount is known; it must be given for all nodes or for none."""
    is_given = [amount is not None for amount in amounts]
    if any(is_given) and not all(is_given):
        raise root.at("nodes", is_given.index(False)).error(f"{key} is missing, though other nodes have it")
    return any(is_given) if stated is None else stated


def _check_racks(root: Part, entry: _ClusterEntry) -> None:
    known = {rack.name for rack in entry.racks}
    for index, node in enumerate(entry.nodes):
        if known and node.rack and node.rack not in known:
            raise root.at("nodes", index, "rack").unexpected(f"one of {', '.join(sorted(known))}")


def _nodes(part: Part, entry: _NodeEntry, levels: list[str]) -> Iterator[Node]:
    domains = _domains(part, entry, levels)
    try:
        for name in node_names(entry.name, entry.count):
            yield Node(
                name,
                entry.gpus,
                entry.gpu_type or (UNKNOWN_GPU_TYPE if entry.gpus else ""),
                milli_from_number(entry.cpus or 0.0),
                mib_from_gib(entry.memory_gib or 0.0),
                domains.get(RACK_LEVEL, entry.rack),
                entry.inside,
                entry.idle_watts,
                entry.busy_watts,
                tuple(domains[level] for level in levels),
            )
    except BadValue as error:
        raise part.error(error) from None


def _domains(part: Part, entry: _NodeEntry, levels: list[str]) -> dict[str, str]:
    """Return the domain at each level; that of the level `rack` may be given as `rack`."""
    racks = {RACK_LEVEL: entry.rack} if entry.rack and RACK_LEVEL in levels else {}
    found = {**racks, **entry.domains}
    if unknown := [name for name in found if name not in levels]:
        raise part.at("domains", unknown[0]).error(f"is not one of the levels of the cluster: {', '.join(levels)}")
    if missing := [name for name in levels if name not in found]:
        raise part.error(f"domains has no {missing[0]!r}, which is a level of the cluster")
    return found


def node_names(pattern: str, count: int | None = None) -> list[str]:
    """Expand 'a[0-2]', or 'a' with a count of 3, to a0, a1, a2; 'a' without a count is one node."""
    match = _RANGE.fullmatch(pattern)
    if match is None:
        if count is None:
            return [pattern]
        if not 0 < count <= MAX_NODES:
            raise BadValue(f"count is {count}, expected 1 to {MAX_NODES:,}")
        return [f"{pattern}{index}" for index in range(count)]
    parts = [_range(part) for part in match[2].split(",")]
    if (total := sum(map(len, parts))) > MAX_NODES:
        raise BadValue(f"{pattern!r} is too large: it names {total:,} nodes, expected at most {MAX_NODES:,}")
    width = [len(part.partition("-")[0]) for part in match[2].split(",")]
    numbers = [f"{index:0{digits}}" for part, digits in zip(parts, width, strict=True) for index in part]
    names = [f"{match[1]}{digits}{match[3]}" for digits in numbers]
    if count not in (None, len(names)):
        raise BadValue(f"count is {count}, but {pattern!r} names {len(names)} nodes")
    return names


def _range(part: str) -> range:
    """Parse '08-11' as 8, 9, 10, 11."""
    first, dash, last = part.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()) or max(len(first), len(last)) > MAX_DIGITS:
        raise BadValue(f"{part!r} is not a range such as 0-15")
    end = int(last) if dash else int(first)
    if end < int(first):
        raise BadValue(f"{part!r} is not a range such as 0-15: it ends before it begins")
    return range(int(first), end + 1)


def write(cluster: Cluster, path: Path) -> None:
    """Write the cluster as YAML; equal neighbouring nodes share one entry. `read` returns the same cluster."""
    entry: dict[str, Any] = {"name": cluster.name}
    if cluster.network != ETHERNET:
        entry["network"] = _to_mapping(cluster.network)
    if cluster.gpu_types:
        entry["gpu_types"] = [_to_mapping(gpu_type) for gpu_type in cluster.gpu_types]
    if cluster.racks:
        entry["racks"] = [_to_mapping(rack) for rack in cluster.racks]
    if cluster.levels:
        entry["levels"] = [msgspec.to_builtins(level) for level in cluster.levels]
    if cluster.tenants:
        entry["tenants"] = [_to_mapping(tenant) for tenant in cluster.tenants]
    known_and_present = {
        "cpus_known": (cluster.cpus_known, cluster.cpu_milli > 0),
        "memory_known": (cluster.memory_known, cluster.memory_mib > 0),
    }
    # Amounts that are absent are read as unknown; only amounts that are present but unknown need the key.
    entry |= {key: False for key, (known, present) in known_and_present.items() if present and not known}
    entry["nodes"] = list(_node_entries(cluster))
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def _to_mapping(struct: GpuType | Link | Rack | Tenant) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(struct)
    return {name: int_if_whole(value) if isinstance(value, float) else value for name, value in fields.items()}


def _node_entries(cluster: Cluster) -> Iterator[dict[str, Any]]:
    with_cpus = cluster.cpus_known or cluster.cpu_milli > 0
    with_memory = cluster.memory_known or cluster.memory_mib > 0
    for first, names in _equal_neighbours(cluster.nodes):
        entry: dict[str, Any] = {"name": _pattern(names)}
        if first.gpus or first.gpu_type:
            entry |= {"gpus": first.gpus, "gpu_type": first.gpu_type}
        if with_cpus:
            entry["cpus"] = int_if_whole(first.cpu_milli / WHOLE)
        if with_memory:
            entry["memory_gib"] = int_if_whole(first.memory_mib / 1024)
        if first.rack and RACK_LEVEL not in cluster.level_names:
            entry["rack"] = first.rack
        if first.domains:
            entry["domains"] = dict(zip(cluster.level_names, first.domains, strict=True))
        if first.inside != PCIE:
            entry["inside"] = _to_mapping(first.inside)
        for key, watts in (("idle_watts", first.idle_watts), ("busy_watts", first.busy_watts)):
            if watts:
                entry[key] = int_if_whole(watts)
        yield entry


def _equal_neighbours(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, list[str]]]:
    """Group neighbouring nodes that differ only in a number at the end of their names that counts up by one."""

    def group_key(indexed_node: tuple[int, Node]) -> tuple[object, ...]:
        index, node = indexed_node
        stem, digits = _stem_and_digits(node.name)
        offset = int(digits) - index if digits else node.name
        return (stem, offset, msgspec.structs.replace(node, name="any"))

    for _, group in groupby(enumerate(nodes), key=group_key):
        first, *others = (node for _, node in group)
        names = [first.name, *(node.name for node in others)]
        if len(names) > 1 and node_names(_pattern(names)) != names:  # such as 8, 9, 010
            yield from ((first, [name]) for name in names)
        else:
            yield first, names


def _stem_and_digits(name: str) -> tuple[str, str]:
    digits = re.search(r"\d{0,9}$", name, re.ASCII)
    width = len(digits[0]) if digits else 0
    return name[: len(name) - width], name[len(name) - width :]


def _pattern(names: list[str]) -> str:
    """Return a pattern that `_names` expands to these names. A single name that looks like a range is an error."""
    if len(names) == 1:
        if _RANGE.fullmatch(names[0]):
            raise BadValue(f"node {names[0]!r} cannot be written: its name would be read as a range")
        return names[0]
    stem, first = _stem_and_digits(names[0])
    return f"{stem}[{first}-{_stem_and_digits(names[-1])[1]}]"


# --- CSV ----------------------------------------------------------------------------------------------------

_COMMON = ("node_id", "gpu_type", "num_gpu", "cpu", "mem_gib")
_OPENB = ("sn", "model", "gpu", "cpu_milli", "memory_mib")


def _from_csv(source: TextSource) -> Cluster:
    table = TextTable(source)
    if set(_COMMON) <= set(table.columns):
        return _cluster_of_rows(source, table, _COMMON, milli_from_number, mib_from_gib)
    if set(_OPENB) <= set(table.columns):
        return _cluster_of_rows(source, table, _OPENB, round, round)
    raise BadFile(
        source.path, f"has columns {', '.join(table.columns)}; expected {', '.join(_COMMON)} or {', '.join(_OPENB)}"
    )


def _cluster_of_rows(
    source: TextSource,
    table: TextTable,
    columns: tuple[str, ...],
    cpu_milli: Callable[[float], int],
    memory_mib: Callable[[float], int],
) -> Cluster:
    """Build a cluster from one row per node; CPUs or memory that no row gives are unknown."""
    name, gpu_type, gpus, cpu, memory = columns
    cells = [table.index(column) for column in columns]
    nodes: list[Node] = []
    is_given: dict[str, bool] = {}

    def amount(text: str, column: str) -> float:
        """Parse an amount that all rows must give, or none."""
        if is_given.setdefault(column, bool(text)) != bool(text):
            raise BadCell(column, text, "a number in every row, or in none")
        return parse_number(text, column) if text else 0.0

    for row in table.rows():
        try:
            if len(row) != len(table.columns):
                raise BadCell("row", f"{len(row)} cells", f"{len(table.columns)} cells")
            cell = dict(zip(columns, (row[index] for index in cells), strict=True))
            count = parse_whole(cell[gpus], gpus)
            nodes.append(
                Node(
                    cell[name],
                    count,
                    (cell[gpu_type] or UNKNOWN_GPU_TYPE) if count else "",
                    cpu_milli(amount(cell[cpu], cpu)),
                    memory_mib(amount(cell[memory], memory)),
                )
            )
        except BadCell as bad_cell:
            raise table.bad_row(bad_cell) from None
        except BadValue as error:
            raise table.bad_row(BadCell("row", str(error), "a valid node")) from None
    try:
        return Cluster(
            tuple(nodes),
            name=source.name,
            cpus_known=is_given.get(cpu, False),
            memory_known=is_given.get(memory, False),
        )
    except BadValue as error:
        raise BadFile(source.path, str(error)) from None
