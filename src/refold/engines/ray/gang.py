"""One run on Ray: a placement group pinned to the chosen nodes, and in it an actor for each instance.

Group and actors are detached and have names, by which the next daemon finds them. An actor is created only if there is
none of its name, and starts its command once. When all of them were started, that is noted in a file: an actor that is
missing after that was lost with its node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from refold.core import RunFailed, RunFinished, RunStarted, RunStopped
from refold.engines.local import describe_exit, has_agent
from refold.engines.ray.guard import InstanceSpec
from refold.engines.ray.rank_actor import ALL_OUTPUT, RankActor
from refold.model import Seconds
from refold.server.output import (
    OWNER_ONLY_FILE,
    OWNER_ONLY_FOLDER,
    ResourceShortage,
    RunFiles,
    StartRecord,
    append_log,
    read_regular,
    write_atomically,
)

FIRST_PORT, PORTS = 20_000, 10_000
"""Where gangs meet: above the ports of Ray's workers, below those that the system gives to programs."""

POLL_WAIT: Seconds = 2.0
"""How long an actor waits for news before it answers."""

PLACEMENT_WAIT: Seconds = 30.0
"""How long a placement group may take: others may use what the scheduler believes to be free."""

ANSWER_WAIT: Seconds = 60.0
"""How long an actor may take to start or to answer, longer than Ray needs to find out that a node is lost."""

RunEnd = RunFinished | RunFailed | RunStopped
log = logging.getLogger("refold")


class RayRunFiles:
    """The files of one run. `common`: those that every run has."""

    def __init__(self, out: Path, job: str, run: int) -> None:
        self.common = RunFiles(out, job, run)
        self.key = (job, run)
        self._prefix = self.common.folder / f"run-{run}"

    def record_start(self, mark: str, instances: int) -> StartRecord:
        """Write the start record before anything is created; if there is one already, return that."""
        first = FIRST_PORT + crc32(mark.encode()) % (PORTS - instances - 1)
        ports = range(first + 1, first + 1 + instances) if instances > 1 else ()
        return self.common.record_start(StartRecord(mark, first if instances > 1 else 0, tuple(ports)))

    def record_end(self, end: RunFinished | RunFailed | RunStopped) -> None:
        """Write how the run ends, unless that was written before."""
        with suppress(OSError):
            self.common.folder.mkdir(mode=OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
            self.common.record_end(end)

    def has_begun(self) -> bool:
        """Whether all instances were started."""
        return self._path("ray.begun").exists()

    def note_begun(self) -> None:
        """Note that all instances were started. While the nodes of Ray change, an earlier gang may note it as well."""
        self._path("ray.begun").touch(OWNER_ONLY_FILE)

    def copied(self, instance: int) -> int:
        """Return how many bytes of an instance's output were copied."""
        with suppress(OSError, ResourceShortage, ValueError):
            return int(read_regular(self._path(f"{instance}.copied")))
        return 0

    def note_copied(self, instance: int, count: int) -> None:
        """Note how many bytes of an instance's output were copied."""
        write_atomically(self._path(f"{instance}.copied"), str(count).encode())

    def _path(self, suffix: str) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}.{suffix}")


class Lost(Exception):
    """An actor or a placement group could not be created, or is gone."""


class Rank(NamedTuple):
    """An instance: the node that it is pinned to, what it gets there, and what it runs."""

    node_id: str
    resources: dict[str, float]
    spec: InstanceSpec


class RayGang:
    """A run. `name`: the beginning of the names of its group and actors. `stop_signal`: that of its job."""

    def __init__(
        self,
        ray: Any,
        name: str,
        files: RayRunFiles,
        ranks: Callable[[], Sequence[Rank]],
        instances: int,
        stop_signal: str,
        grace: Seconds,
        max_output_bytes: int,
    ) -> None:
        """`ranks`: makes what the instances run, if they are to be started. `grace`: how long they have to end."""
        self._ray = ray
        self._name = name
        self._files = files
        self._ranks = ranks
        self._size = instances
        self._stop_signal = stop_signal
        self._grace = grace
        self._max_output_bytes = max_output_bytes
        self._actors: list[Any] = []
        self._stopping = asyncio.Event()
        self._was_stopped = False
        self._failure: RunFailed | None = None
        self._codes: list[int | None] = [None] * instances
        self._is_over = [False] * instances

    def stop(self, grace: Seconds | None = None) -> None:
        """End the run."""
        self._grace = self._grace if grace is None else grace
        self._stopping.set()
        if grace is not None and self._actors:
            self._send_stop(self._actors)

    async def supervise(self, report: Callable[[RunStarted], None]) -> RunEnd:
        """Start or adopt the run, follow it to its end, remove what it has in Ray, and return how it ended."""
        end = await asyncio.to_thread(self._files.common.read_end)
        if end is None:
            end = await self._run(report)
            await asyncio.to_thread(self._files.record_end, end)
        else:
            self._actors = [actor for actor in await asyncio.to_thread(self._find_actors) if actor is not None]
            await self._end_actors()
        await asyncio.to_thread(self._remove)
        return end

    async def _run(self, report: Callable[[RunStarted], None]) -> RunEnd:
        try:
            await asyncio.to_thread(self._create)
        except Lost as error:
            if not self._stopping.is_set():
                self._failure = self._failed(str(error), lost=True)
            await self._end_actors()
            return self._end()
        report(RunStarted(*self._files.key))
        following = [asyncio.create_task(self._follow(index)) for index in range(self._size)]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            pending: set[asyncio.Task[Any]] = {*following}
            while pending and self._failure is None and not stopping.done():
                await asyncio.wait({stopping, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending = {task for task in following if not task.done()}
            if pending:
                if self._failure is None:  # the next daemon knows that it was stopped, whatever its processes say
                    self._was_stopped = True
                    await asyncio.to_thread(self._files.record_end, RunStopped(*self._files.key))
                self._send_stop(self._actors)
            await asyncio.gather(*following)
        finally:
            for task in (stopping, *following):
                task.cancel()
        return self._end()

    def _end(self) -> RunEnd:
        if self._failure is not None:
            return self._failure
        if not self._was_stopped and all(self._is_over) and 0 in self._codes:
            return RunFinished(*self._files.key)
        return RunStopped(*self._files.key)

    # Creation. These methods block.

    def _create(self) -> None:
        """Create the group and the actors that are missing, and start all instances. Raises Lost."""
        if self._files.has_begun():
            found = self._find_actors()
            if None in found:
                raise Lost(f"instance {found.index(None)} was lost")
            self._actors = found
            return
        ranks, errors = self._ranks(), self._ray.exceptions
        try:
            group = self._find_or_create_group(ranks)
            if not group.wait(PLACEMENT_WAIT):
                raise Lost("Ray has not enough free resources on the nodes that were chosen")
            self._actors = [self._find_or_create_actor(group, index, rank) for index, rank in enumerate(ranks)]
            starts = [
                actor.start.remote(msgspec.json.encode(rank.spec))
                for actor, rank in zip(self._actors, ranks, strict=True)
            ]
            self._ray.get(starts, timeout=ANSWER_WAIT)
        except (errors.RayError, ValueError) as error:
            raise Lost(f"Ray cannot start it: {_first_line(error)}") from None
        self._files.note_begun()

    def _find_or_create_group(self, ranks: Sequence[Rank]) -> Any:
        util = self._ray.util
        with suppress(ValueError):
            return util.get_placement_group(self._name)
        return util.placement_group(
            [{"CPU": 0.0, **rank.resources} for rank in ranks],
            strategy="PACK",
            name=self._name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": rank.node_id} for rank in ranks],
        )

    def _find_or_create_actor(self, group: Any, index: int, rank: Rank) -> Any:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index)
        resources = {"num_cpus": rank.resources.get("CPU", 0.0), "num_gpus": rank.resources.get("GPU", 0.0)}
        actor = self._ray.remote(max_restarts=0, max_concurrency=8, memory=rank.resources.get("memory"), **resources)
        options = {"name": self._actor_name(index), "lifetime": "detached", "get_if_exists": True}
        return actor(RankActor).options(scheduling_strategy=strategy, **options).remote(self._max_output_bytes)

    def _find_actors(self) -> list[Any | None]:
        found: list[Any | None] = []
        for index in range(self._size):
            try:
                found.append(self._ray.get_actor(self._actor_name(index)))
            except ValueError:
                found.append(None)
        return found

    def _actor_name(self, index: int) -> str:
        return f"{self._name}:{index}"

    def _remove(self) -> None:
        """Remove the actors and the group."""
        for actor in self._actors:
            self._ray.kill(actor)
        with suppress(ValueError):
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(self._name))

    # Following.

    async def _follow(self, index: int) -> None:
        """Copy the output of an instance until it has ended."""
        while not self._is_over[index]:
            offset = await asyncio.to_thread(self._files.copied, index)
            try:
                answer = self._actors[index].poll.remote(offset, POLL_WAIT)
                (ended, code, problem, begin, output), lost = await asyncio.wrap_future(answer.future()), False
            except self._ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(POLL_WAIT)
                continue
            except self._ray.exceptions.RayError as error:
                problem = f"its node or actor was lost: {_first_line(error)}"
                ended, code, begin, output, lost = True, None, offset, b"", True
            if output:
                await asyncio.to_thread(self._copy, index, begin, output)
            if ended:
                self._codes[index], self._is_over[index] = code, True
                if code != 0:
                    self._fail(index, problem or describe_exit(code or 0), code=code, lost=lost)

    def _copy(self, index: int, begin: int, output: bytes) -> None:
        with suppress(OSError):
            append_log(self._files.common.log(index), output, self._max_output_bytes)
            self._files.note_copied(index, begin + len(output))

    def _fail(self, index: int, why: str, *, code: int | None = None, lost: bool = False) -> None:
        """Take note of the first failure. Instances that end because they were told to have not failed.

        Agents of other instances go on without this one (see docs/failures.md).
        """
        others = any(code == 0 or not is_over for code, is_over in zip(self._codes, self._is_over, strict=True))
        if others and self._size > 1 and has_agent(self._files.common):
            log.warning("run %d of %s goes on without instance %d: %s", *reversed(self._files.key), index, why)
        elif self._failure is None and not self._stopping.is_set():
            prefix = f"instance {index}: " if self._size > 1 else ""
            self._failure = self._failed(prefix + why, code, lost)

    def _failed(self, why: str, code: int | None = None, lost: bool = False) -> RunFailed:
        return RunFailed(*self._files.key, why, retry=lost, exit_code=code)

    # Ending.

    def _send_stop(self, actors: Sequence[Any]) -> None:
        signal = self._stop_signal if self._stopping.is_set() else "TERM"
        for actor in actors:
            actor.stop.remote(signal, self._grace)

    async def _end_actors(self) -> None:
        """End the instances of actors whose run has ended, and wait until they have."""
        self._send_stop(self._actors)
        for actor in self._actors:
            with suppress(self._ray.exceptions.RayError):
                while not (await asyncio.wrap_future(actor.poll.remote(ALL_OUTPUT, POLL_WAIT).future()))[0]:
                    await asyncio.sleep(0.05)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
