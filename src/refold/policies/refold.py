"""Refold's own policy (draft)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from refold.core import View
from refold.model import KEEP, Decision, Job, Run
from refold.packing import Placer
from refold.plans.speeds import Knowledge, Speeds
from refold.policies.board import Board, Steering
from refold.policies.options import Option, Options
from refold.policies.reasons import Reasons


class Refold:
    name = "refold"

    def __init__(self, restart_seconds: float = 78.0, knowledge: Any = Knowledge(), grow: float = 1.0, margin: float = 1.0,
                 patience: float = 0.0, lam: float = 1.0, reserve: int = 0, harmf: float = 1.0) -> None:
        self._restart = restart_seconds
        self._knowledge = Knowledge.of(knowledge)
        self._placer = Placer("best-fit")
        self._steering = Steering()
        self._reasons = Reasons()
        self._options: Options | None = None
        self._speeds: Speeds | None = None
        self.k = dict(grow=grow, margin=margin, lam=lam, harmf=harmf, reserve=reserve)
        self._base: dict[str, tuple[float, float, float]] = {}

    def decide(self, view: View) -> Decision:
        if self._options is None:
            self._speeds = Speeds(view.cluster, self._knowledge)
            self._options = Options(self._speeds)
        ch = view.changes
        if self._steering.goes_on(view):
            d = self._steering.go_on(view)
            return self._with_waits(view, d)
        if not (ch.submitted or ch.returned or ch.ended or ch.nodes or ch.gone):
            return KEEP
        board = Board(view)
        self._plan(view, board)
        d = self._steering.towards(view, board.target())
        return self._with_waits(view, d)

    def _with_waits(self, view, d):
        started = {s.job for s in d.starts}
        for job in view.waiting.values():
            if job.id in started: continue
            if job.id in self._steering.awaited: self._reasons.releasing(job)
            else: self._reasons.no_place(view, job)
        waits = self._reasons.collect(view, d.starts)
        if not (d.starts or d.stops or d.reshapes or waits): return KEEP
        import msgspec
        return msgspec.structs.replace(d, waits=waits)

    # remaining
    def steps_left(self, view: View, job: Job) -> float:
        total = job.steps if job.steps is not None else 1.0
        done, at = view.steps_done(job.id)
        run = view.runs.get(job.id)
        if run is not None and not run.stopping:
            since = view.computing_since(job.id)
            starting = run.number > 1 and since == run.since
            begun = run.since + (self._restart if starting else 0.0) if starting else since
            begun = max(begun, at)
            done += max(0.0, view.now - begun) * self.speed_of(job, run)
        return max(total - done, 0.5 if job.steps else 0.02)

    def speed_of(self, job: Job, run: Run) -> float:
        return self.alloc_speed(job, run.allocation)

    def alloc_speed(self, job, alloc) -> float:
        from refold.simulator.measured import layout_of
        sp = self._speeds
        if not sp.knows(job): return 1.0 / max(job.work or 1.0, 1e-9)
        gt = sp.cluster.nodes[alloc.placement[0].node].gpu_type
        cpus = sum(s.cpu_milli for s in alloc.placement) / 1000
        return sp.with_plan(job, gt, layout_of(alloc), cpus, alloc.plan or sp.own_plan(job)).steps_per_second

    def _plan(self, view: View, board: Board) -> None:
        K = self.k
        jobs = {**view.waiting, **view.active}
        left = {j: self.steps_left(view, job) for j, job in jobs.items()}
        G = view.cluster.gpus
        opts = {j: self._options.of(job) for j, job in jobs.items()}
        eff = {j: min(o.gpus / o.speed for o in opts[j]) for j in jobs}
        work = {j: left[j] * eff[j] for j in jobs}     # GPU-seconds at best efficiency
        waiting = sorted((j for j in jobs if board.holds(j) is None), key=lambda j: (work[j], j))
        # end times of current holders
        def end_of(j):
            a = board.holds(j)
            run = view.runs.get(j)
            pend = 0.0
            if run is not None and run.number > 1 and view.computing_since(j) == run.since:
                pend = max(0.0, run.since + self._restart - view.now)
            return pend + left[j] / self.alloc_speed(jobs[j], a)
        n_wait = len(waiting)
        unplaced = []
        for idx, j in enumerate(waiting):
            behind = n_wait - idx - 1
            lam = K['lam'] * behind / G
            cost = lambda o: left[j] / o.speed * (1 + lam * o.gpus)
            ranked = sorted(opts[j], key=cost)
            fresh = 0.0 if view.runs_so_far(j) == 0 else self._restart
            # best on free
            best_free = None
            for o in ranked:
                if board.place(j, self._placer, o.demand, o.plan):
                    best_free = o
                    break
            t_free = cost(best_free) if best_free else inf
            # with victims
            if best_free is not None:
                ideal = cost(ranked[0])
                if t_free - ideal < self._restart: continue
            got = self._take(view, board, j, jobs, left, work, opts, ranked, cost, t_free, best_free, end_of)
            if not got and best_free is None:
                unplaced.append(j)
        self._grow(view, board, jobs, left, opts, len(unplaced))

    def _take(self, view, board, j, jobs, left, work, opts, ranked, cost, t_free, best_free, end_of) -> bool:
        """Shrink or stop holders with more work left."""
        K = self.k
        snap = board.snapshot()
        cands = [v for v, _ in board.holders() if v != j and jobs[v].preemptible and work[v] > work[j]]
        cands = [v for v in cands if v not in view.runs or not view.runs[v].stopping]
        if not cands: return False
        # victims by most work left first
        cands.sort(key=lambda v: (-work[v], v))
        # natural release times for wait estimate
        holders = [(end_of(v), v) for v, _ in board.holders() if v != j]
        holders.sort()
        best = None
        for o in ranked[:6]:
            board.restore(snap)
            if best_free is not None: board.release(j)
            harm = 0.0
            ok = False
            stopped = []
            tj = left[j] / o.speed
            for v in cands:
                if board.place(j, self._placer, o.demand, o.plan, "start"):
                    ok = True; break
                held = board.holds(v)
                now_t = left[v] / self.alloc_speed(jobs[v], held)
                running = v in view.runs
                board.release(v, f"for {j}")
                stopped.append((v, held, now_t))
                harm_v = (self._restart if running else 0) + tj
                harm += harm_v
                if best is not None and harm > best[0] + 1e9: break
            else:
                ok = board.place(j, self._placer, o.demand, o.plan, "start")
            if not ok: continue
            # put victims back smaller where possible
            harm = 0.0
            for v, held, now_t in stopped:
                if board.put(v, held): 
                    if v in view.runs and held == view.runs[v].allocation: board.changed.pop(v, None)
                    continue
                running = v in view.runs
                placed = None
                for o2 in sorted(opts[v], key=lambda q: -q.speed):
                    if board.place(v, self._placer, o2.demand, o2.plan, f"shrunk for {j}"):
                        placed = o2; break
                if placed:
                    harm += max(0.0, left[v] / placed.speed - now_t) * 1.0 + (self._restart if running else 0)
                    # only lost while j runs
                else:
                    harm += tj + (self._restart if running else 0)
            total = cost(o) + K['harmf'] * harm
            if best is None or total < best[0]:
                best = (total, o, board.snapshot())
        # compare with waiting / with what is free
        if best_free is not None:
            alt = t_free
        else:
            # wait for natural release
            board.restore(snap)
            wait = None
            for t, v in holders:
                board.release(v)
                for o in ranked:
                    if board.place(j, self._placer, o.demand, o.plan):
                        wait = t + cost(o); break
                if wait is not None: break
            alt = wait if wait is not None else inf
        if best is not None and best[0] * K['margin'] < alt:
            board.restore(best[2])
            return True
        board.restore(snap)
        return best_free is not None

    def _grow(self, view, board, jobs, left, opts, unplaced) -> None:
        K = self.k
        while board.free.whole_gpus > K['reserve']:
            best = None
            for v, held in list(board.holders()):
                if not jobs[v].preemptible or not self._speeds.knows(jobs[v]): continue
                running = v in view.runs and view.runs[v].allocation == held
                if v in view.runs and view.runs[v].stopping: continue
                gpus = held.gpu_milli // 1000
                now_t = left[v] / self.alloc_speed(jobs[v], held)
                if running and now_t < self._restart * 1.5: continue
                for o in opts[v]:
                    if o.gpus <= gpus or o.gpus - gpus > board.free.whole_gpus: continue
                    new_t = left[v] / o.speed + (self._restart if (running or v in view.runs) else 0)
                    saved = now_t - new_t
                    if saved <= (self._restart * K['grow'] if running else 1.0): continue
                    score = saved / (o.gpus - gpus)
                    if best is None or score > best[0]:
                        best = (score, v, o, saved)
            if best is None: return
            _, v, o, saved = best
            snap = board.snapshot()
            board.release(v)
            if not board.place(v, self._placer, o.demand, o.plan, f"grown: saves {saved:.0f} s"):
                board.restore(snap)
                opts[v] = tuple(x for x in opts[v] if x is not o)
