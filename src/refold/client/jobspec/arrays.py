"""Job arrays (`--array`): one job per task."""

from __future__ import annotations

from msgspec.structs import replace

from refold.model import Job, JobArray, task_id


def array_jobs(job: Job, array: JobArray, number: int) -> list[Job]:
    """Return the jobs of an array, whose id is that of the given job. `number`: that of the first job."""
    return [
        replace(job, id=task_id(job.id, place.task), launch=replace(job.launch, array=place))
        for place in array.places(job.id, number)
    ]
