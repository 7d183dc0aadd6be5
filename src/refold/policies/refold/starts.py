"""Steps 1 to 4 of a Refold round: waiting jobs are started in order, on free GPUs, by preemption or by sharing.

The first overdue job that cannot start gets a reservation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from refold.placement import Ints, Placer
from refold.policies.common import Draft, Options, Sharing
from refold.policies.refold.domains import DomainWaits
from refold.policies.refold.jobs import RoundJobs
from refold.policies.refold.preemption import Preemptor
from refold.policies.refold.reservation import END_QUANTILE, NodeReservation, reserve_nodes
from refold.policies.refold.table import Flags


class Starter:
    """Places waiting jobs on a draft."""

    def __init__(
        self,
        jobs: RoundJobs,
        draft: Draft,
        placer: Placer,
        max_preemptors: int,
        reservation: NodeReservation | None = None,
        domains: DomainWaits | None = None,
    ) -> None:
        """`max_preemptors`: number of jobs that may preempt others, apart from guaranteed jobs.

        `reservation`: that of the last round. `domains`: the jobs that wait for domains; None on a cluster without.
        """
        self._jobs, self._draft, self._placer = jobs, draft, placer
        self._preemptor = Preemptor(jobs, draft, placer)
        self._preemptors_left = max_preemptors
        self._unplaceable: set[Options] = set()
        """Sets of shapes of which none fits."""
        self._hopeless: set[Options] = set()
        """Sets of shapes for which a job of unknown length cannot preempt enough, nor can those after it."""
        self._unplaceable_on_reserved: set[Options] = set()
        self._last_reservation, self._domains = reservation, domains
        self.reservation: NodeReservation | None = None
        self.queue: list[str] = []
        """The waiting jobs in the order in which they were tried."""

    def place_waiting(self) -> None:
        """Start waiting jobs in order; then let jobs without GPUs share those that others hold beyond their request."""
        self._restore_guarantees()
        jobs, waiting = self._jobs, self._jobs.in_order(self._unplaced())
        self.queue = jobs.table.ids[waiting].tolist()
        for position in self._positions_to_try(waiting):
            job_id = self.queue[position]
            rate = jobs.delay_per_gpu_second(len(waiting) - position - 1)
            if self._start(job_id, rate) and not self._waits_for_domains(job_id, rate):
                continue
            self._preemptor.gpus_ahead += jobs.options_of(job_id).fewest_gpus
            if self.reservation is None and jobs.is_overdue(job_id):
                self._reserve_for(job_id)
        if jobs.with_range:
            self._share()

    def _waits_for_domains(self, job_id: str, rate: float) -> bool:
        return self._domains is not None and self._domains.hold_back(self._jobs, self._draft, job_id, rate)

    def _share(self) -> None:
        """Place jobs without GPUs by shrinking runs that hold more than they requested."""
        jobs = self._jobs
        stopped = [job_id for job_id in self._draft.changed if job_id in jobs.view.runs and self._has_no_gpus(job_id)]
        lenders = [job_id for job_id in jobs.with_range if jobs.is_settled(job_id)]
        sharing = Sharing(self._draft, self._placer, jobs.by_id, self._options_of, lenders)
        if sharing.is_possible():
            without_gpus = np.concatenate([self._unplaced(), jobs.table.rows(stopped)])
            sharing.place(jobs.table.ids[jobs.in_order(without_gpus)].tolist())

    def _positions_to_try(self, waiting: Ints) -> Iterator[int]:
        """Yield the positions of the jobs to try, in order. There may be thousands that cannot start and are skipped.

        GPUs of those that are skipped are counted as needed ahead of those behind them.
        """
        jobs, kinds = self._jobs, self._jobs.table.column("kind")[waiting]
        is_guaranteed = jobs.flags(jobs.guaranteed)[waiting]
        is_always_tried = is_guaranteed | jobs.overdue[waiting]
        has_given_up = np.zeros(len(jobs.kinds), dtype=np.bool_)
        position, reservation = 0, self.reservation
        while position < len(waiting):
            if self.reservation is not reservation:
                reservation = self.reservation
                is_always_tried = is_guaranteed | self._may_end_on_reserved(waiting)
            if has_given_up[kinds[position]] and not is_always_tried[position]:
                is_tried = is_always_tried[position:] | ~has_given_up[kinds[position:]]
                skipped = int(is_tried.argmax()) if is_tried.any() else len(is_tried)
                self._preemptor.gpus_ahead += int(jobs.fewest_gpus[kinds[position : position + skipped]].sum())
                position += skipped
                continue
            yield position
            options = jobs.options_of(self.queue[position])
            if not self._unplaceable:
                has_given_up[:] = False
            else:
                has_given_up[kinds[position]] = self._has_given_up(options)
            if options in self._unplaceable_on_reserved and not is_guaranteed[position]:
                is_always_tried &= is_guaranteed | (kinds != kinds[position])
            position += 1

    def _may_end_on_reserved(self, waiting: Ints) -> Flags:
        """Return which waiting jobs may start on reserved nodes, by their expected run times."""
        if self.reservation is None:
            return np.zeros(len(waiting), dtype=np.bool_)
        jobs, left = self._jobs, self.reservation.free_at - self._jobs.view.now
        column = jobs.table.column
        is_in_time: Flags = column("remaining")[waiting] / jobs.last_speeds[column("kind")[waiting]] <= left
        return is_in_time & (left > 0)

    def _order_class(self, job_id: str) -> tuple[bool, int, bool]:
        """Return what matters more in the order than weighted work."""
        jobs = self._jobs
        return job_id in jobs.guaranteed, jobs.by_id[job_id].priority, jobs.is_overdue(job_id)

    def _options_of(self, job_id: str) -> Options:
        return self._jobs.guarantee_options.get(job_id) or self._jobs.options_of(job_id)

    def is_review_useful(self) -> bool:
        """Return whether a job still waits, and predictions change with time by which it may preempt others later."""
        waits = len(self._unplaced()) > 0 or bool(self._draft.without_allocation())
        return waits and not self._jobs.table.column("is_known").all()

    def overtaken_by_fair_share(self) -> dict[str, int]:
        """Return how many jobs have got GPUs before each job that still waits, by fair share alone."""
        jobs = self._jobs
        if not jobs.uses_fair_share:
            return {}
        placed = self._draft.starting()
        counts = {
            job_id: sum(
                self._order_class(other) == self._order_class(job_id) and jobs.is_ahead_by_fair_share(other, job_id)
                for other in placed
            )
            for job_id in jobs.table.ids[self._unplaced()].tolist()
        }
        return {job_id: count for job_id, count in counts.items() if count}

    def _unplaced(self) -> Ints:
        """Return the rows of the jobs that still wait."""
        return self._jobs.waiting(without=self._draft.starting())

    def _has_no_gpus(self, job_id: str) -> bool:
        return self._draft.allocation_of(job_id) is None

    def _restore_guarantees(self) -> None:
        """Reshape guaranteed runs that are slower than guaranteed.

        They started before the guarantee applied, or reports show that the model overestimated their speed.
        """
        draft = self._draft
        for job_id in sorted(self._jobs.guaranteed):
            held = draft.allocation_of(job_id)
            if held is None or not draft.may_change(job_id) or self._jobs.meets_guarantee(job_id, held):
                continue
            before = draft.snapshot()
            draft.release(job_id)
            if not self._start(job_id, 0.0):
                draft.restore(before)
            else:
                draft.changed[job_id] = "slower than guaranteed: reshaped to meet the guarantee"

    def _has_given_up(self, options: Options) -> bool:
        """Return whether no further job with these options can start, unless it is guaranteed."""
        return options in self._unplaceable and (self._preemptors_left <= 0 or options in self._hopeless)

    def _start(self, job_id: str, rate: float) -> bool:
        """Place a job; a guaranteed job without a safe shape gets any shape estimated to meet the guarantee."""
        jobs = self._jobs
        if self._start_with(job_id, jobs.options_of(job_id), rate):
            return True
        if job_id in jobs.guaranteed:
            return self._start_with(job_id, jobs.guarantee_options[job_id], rate)
        return self.reservation is not None and self._start_on_reserved(job_id, self.reservation)

    def _reserve_for(self, job_id: str) -> None:
        self.reservation = reserve_nodes(self._jobs, self._draft, job_id, self._last_reservation)
        if self.reservation is not None:
            self._draft.close_nodes(self.reservation.nodes)

    def _start_on_reserved(self, job_id: str, reservation: NodeReservation) -> bool:
        """Place a job on reserved nodes if it will almost certainly have ended when they are free."""
        jobs, options = self._jobs, self._jobs.options_of(job_id)
        left = reservation.free_at - jobs.view.now
        if left <= 0 or options in self._unplaceable_on_reserved or jobs.run_time(job_id, options[-1]) > left:
            return False
        if jobs.remaining_time_quantile(job_id, END_QUANTILE) > left:
            return False
        self._draft.open_nodes(reservation.nodes)
        fastest_first = sorted(options, key=lambda option: -option.speed)
        placed = self._draft.place_first(job_id, self._placer, fastest_first)
        self._draft.close_nodes(reservation.nodes)
        if placed is None:
            self._unplaceable_on_reserved.add(options)
        return placed is not None

    def _start_with(self, job_id: str, options: Options, rate: float) -> bool:
        """Place a job on free GPUs or by preemption. `rate`: delay of waiting jobs per GPU-second, in seconds."""
        jobs = self._jobs
        may_preempt = job_id in jobs.guaranteed or (self._preemptors_left > 0 and options not in self._hopeless)
        if options in self._unplaceable and not may_preempt:
            return False
        costs = {option: jobs.run_time(job_id, option) * (1 + rate * option.gpus) for option in options}
        ranked = sorted(costs, key=costs.__getitem__)
        placed = None
        if options not in self._unplaceable:
            placed = self._draft.place_first(job_id, self._placer, ranked)
        if placed is None:
            self._unplaceable.add(options)
        elif costs[placed] - costs[ranked[0]] <= jobs.settings.restart_seconds:
            return True
        if not may_preempt:
            return placed is not None
        if job_id not in jobs.guaranteed:
            self._preemptors_left -= 1
        if self._preemptor.preempt_for(job_id, ranked, costs, placed):
            self._unplaceable.clear()
            self._hopeless.clear()
            return True
        if not jobs.knows_work(job_id) and placed is None and not jobs.is_overdue(job_id):
            self._hopeless.add(options)
        return placed is not None
