cimport cython
from libc.math cimport log, pow
from refold.placement.heap cimport pop, push

cdef long long BACKFILL_SHARE, MAX_EVENTS, FUTURES_WITHOUT_START, MAX_ARRIVALS, MAX_PASSED, SORT_INTERVAL
cdef long long _NOTHING_FAILED, _FIRST_ARRIVAL
cdef unsigned long long _FUTURE_HASH, _NUMBER_HASH, _FIRST_MIX, _SECOND_MIX, _ALL_BITS
cdef double inf, STARVING_RANK, PRIORITY_RANK, _MIN_REST
cdef double[::1] _shares

cdef object _with_attributes(object records)

cdef struct QueueNode:
    long long units, gpu_type

cdef struct QueueJob:
    long long units, instances, type_bits, number
    double elapsed, since, speed, rank, priority, queued, gap

cdef struct HeldUnits:
    long long row, node, units

@cython.final
cdef class _QueueFuture:
    cdef QueueJob[::1] jobs
    cdef double[:, ::1] quantiles, ends, starts
    cdef long long[::1] arrivals, target_of
    cdef _NodeUsage usage, later
    cdef _QueueLine line
    cdef bint reserves
    cdef double now, next_arrival, reserved
    cdef long long number, events, open_targets, arrival, first
    cdef long long failed_units, failed_types, failed_gang_units, failed_gang_instances, failed_gang_types

    cdef long long simulate(self, long long number, double now, long long max_events) noexcept nogil
    cdef void _begin(self, long long number, double now) noexcept nogil
    cdef double _end_of_run(self, long long row) noexcept nogil
    cdef bint _advance(self) noexcept nogil
    cdef bint _start_jobs(self) noexcept nogil
    cdef bint _take(self, long long job, bint is_behind) noexcept nogil
    cdef double _reservation(self) noexcept nogil
    cdef bint _start(self, long long job) noexcept nogil

@cython.final
cdef class _QueueLine:
    cdef QueueJob[::1] jobs
    cdef long long[::1] waiting, order, row
    cdef double[::1] rank, queued, sorted_ranks
    cdef long long front, end, count
    cdef double halving, starvation

    cdef void begin(self, double now) noexcept nogil
    cdef bint is_full(self) noexcept nogil
    cdef void add(self, long long row, double now) noexcept nogil
    cdef void remove(self, long long position, long long passed) noexcept nogil
    cdef void sort(self, double now) noexcept nogil
    cdef double _rank_at(self, long long job, double now) noexcept nogil

@cython.final
cdef class _NodeUsage:
    cdef QueueNode[::1] nodes
    cdef HeldUnits[::1] held, entries
    cdef long long[::1] units, following, preceding, heap, taken
    cdef long long[:, ::1] first
    cdef double[::1] times
    cdef long long used, size, total_free

    cdef void begin(self) noexcept nogil
    cdef void copy(self, _NodeUsage other) noexcept nogil
    cdef bint has_room(self, long long instances) noexcept nogil
    cdef void hold(self, long long node, long long units, double until) noexcept nogil
    cdef void push_end(self, long long entry, double at) noexcept nogil
    cdef double first_end(self) noexcept nogil
    cdef void end_until(self, double now) noexcept nogil
    cdef bint take(self, long long instances, long long units, long long type_bits) noexcept nogil
    cdef long long _best_fit(self, long long units, long long type_bits) noexcept nogil
    cdef void _give(self, long long node, long long units) noexcept nogil
    cdef void _link(self, long long node) noexcept nogil
    cdef void _unlink(self, long long node) noexcept nogil

@cython.locals(word=cython.ulonglong)
cdef double _uniform(unsigned long long future, unsigned long long number) noexcept nogil
cpdef double draw_rest(double[::1] quantiles, double elapsed, double uniform) noexcept nogil
cdef double _share_exceeded(double[::1] quantiles, double elapsed) noexcept nogil
cdef long long _first_at_least(double[::1] values, double least) noexcept nogil
