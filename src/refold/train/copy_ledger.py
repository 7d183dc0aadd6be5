"""What the leading agent knows of the copies of all hosts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from refold.train.copies import CopySource, CopyToLoad, HostCopy, TensorRegions, newest_complete, parts_to_back_up
from refold.train.run_settings import HostSlots


class CopyLedger:
    """Keeps the copies by host, and says what is to be done so that they survive the loss of one."""

    def __init__(self) -> None:
        self._held: dict[int, list[HostCopy]] = {}
        self._ordered: tuple[int, int, int] | None = None
        self._failed = False
        self._secured = -1

    def set_hosts(self, hosts: list[int]) -> None:
        """Forget what lost hosts have had; parts of the newest copy may have to be fetched anew."""
        self._held = {host: copies for host, copies in self._held.items() if host in hosts}
        self._ordered = None

    def knows(self, hosts: Iterable[int]) -> bool:
        """Whether all these hosts have told which copies they have."""
        return set(hosts) <= set(self._held)

    def note(self, host: int, copies: Sequence[HostCopy], failed: int | None = None) -> None:
        """Note the complete copies of a host; `failed`: the step of one of which it could not fetch parts."""
        self._held[host] = list(copies)
        if failed is not None and self._ordered is not None and self._ordered[0] == failed:
            self._failed = True

    def to_load(self, hosts: Sequence[HostSlots]) -> CopyToLoad | None:
        """Return the newest copy that is complete on some hosts."""
        found = self._newest(hosts)
        return _to_load(found, hosts, {number: copy.regions for number, copy in found.items()}) if found else None

    def next_orders(self, hosts: Sequence[HostSlots]) -> tuple[int | None, dict[int, CopyToLoad]]:
        """Return the step of a copy that has become secure, if any; and what which host must fetch until one is.

        A copy also counts as secure if a host could not fetch its parts: no better can be done.
        """
        found = self._newest(hosts)
        if not found:
            return None, {}
        key = next(iter(found.values())).key
        parts = parts_to_back_up(found, [host.instance for host in hosts])
        if self._ordered != key:
            self._ordered, self._failed = key, False
            if parts:
                return None, {target: _to_load(found, hosts, wanted) for target, wanted in parts.items()}
        if (parts and not self._failed) or key[0] <= self._secured:
            return None, {}
        self._secured = key[0]
        return key[0], {}

    def _newest(self, hosts: Sequence[HostSlots]) -> dict[int, HostCopy]:
        return newest_complete({host.instance: self._held.get(host.instance, []) for host in hosts})


def _to_load(
    copies: Mapping[int, HostCopy], hosts: Sequence[HostSlots], regions: Mapping[int, TensorRegions]
) -> CopyToLoad:
    step, generation, slot = next(iter(copies.values())).key
    sources = {
        host.instance: CopySource(host.address, host.port, regions[host.instance])
        for host in hosts
        if host.instance in regions
    }
    return CopyToLoad(generation, step, slot, sources)
