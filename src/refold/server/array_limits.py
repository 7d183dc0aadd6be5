"""The number of tasks of an array that may run at once (`--array 0-9%2`)."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from refold.model import ArrayTask, Job


class ArrayLimits:
    """The admitted tasks of each limited array, and those that wait for admission, by task number."""

    def __init__(self) -> None:
        self._arrays: dict[str, _Tasks] = {}

    def is_admitted(self, job: Job) -> bool:
        """Whether a job is admitted, or belongs to no limited array."""
        place = _limited_place(job)
        return place is None or (place.array in self._arrays and job.id in self._arrays[place.array].admitted)

    def admit(self, job: Job) -> bool:
        """Admit a job, or queue it if the limit of its array is reached; return whether it is admitted."""
        place = _limited_place(job)
        if place is None:
            return True
        tasks = self._arrays.setdefault(place.array, _Tasks())
        if job.id not in tasks.admitted and len(tasks.admitted) >= place.limit:
            tasks.enqueue(place.task, job.id)
            return False
        tasks.admitted.add(job.id)
        return True

    def leave(self, job: Job) -> Iterator[str]:
        """Withdraw the admission of a job that has ended or is held; yield queued jobs while there is room."""
        place = _limited_place(job)
        tasks = None if place is None else self._arrays.get(place.array)
        if place is None or tasks is None:
            return
        tasks.admitted.discard(job.id)
        while tasks.queue and len(tasks.admitted) < place.limit:
            yield tasks.dequeue()
        if not (tasks.admitted or tasks.queue):
            self._arrays.pop(place.array, None)


class _Tasks:
    """The tasks of one array."""

    def __init__(self) -> None:
        self.admitted: set[str] = set()
        self.queue: list[tuple[int, str]] = []
        self._queued: set[str] = set()

    def enqueue(self, task: int, job_id: str) -> None:
        if job_id not in self._queued:
            self._queued.add(job_id)
            heappush(self.queue, (task, job_id))

    def dequeue(self) -> str:
        _, job_id = heappop(self.queue)
        self._queued.discard(job_id)
        return job_id


def _limited_place(job: Job) -> ArrayTask | None:
    place = job.launch.array
    return place if place is not None and place.limit else None
