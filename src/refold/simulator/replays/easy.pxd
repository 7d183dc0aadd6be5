cimport cython
from refold.placement.heap cimport TaskHeap
from refold.placement.kernels cimport FreeArrays, adjust_free, count_instances, instances_on_node, need_at, set_free
from refold.simulator.replays.loop cimport JournalNotes, ReplayLoop
from refold.simulator.replays.shortest_tasks cimport ShortestTasks

cdef long long WHOLE, CPU_FREE, FIRST_GPU, GPU_MASK, GPUS, MEMORY_FREE, MILLI_FREE, NODE, WHOLE_FREE
cdef double MIN_WORK_SECONDS, INFINITE

cpdef object replay_easy(object tasks, object cluster, object placement=*, object backfill_order=*, object notes=*)

@cython.final
cdef class EasyLoop(ReplayLoop):
    cdef bint shortest_first
    cdef FreeArrays later, both
    cdef TaskHeap booked, wakes
    cdef ShortestTasks queue
    cdef long long[::1] ending, freed, freed_step, gpu_free
    cdef double[::1] free_until
    cdef long long first, reserved, ending_count, freed_count
    cdef double reserved_start

    cpdef void run(self) noexcept nogil
    @cython.locals(is_early=cython.bint)
    cdef bint _end_tasks(self) noexcept nogil
    cdef void _add_arrivals(self) noexcept nogil
    cdef double _duration(self, long long task) noexcept nogil
    cdef void _update_both(self, long long task) noexcept nogil
    cdef void _note_freed(self, long long task) noexcept nogil
    cdef bint _fits(self, FreeArrays free, long long demand) noexcept nogil
    cdef void _start(self, long long task) noexcept nogil
    cdef void _add_ending(self, long long task) noexcept nogil
    cdef void _start_first_tasks(self) noexcept nogil
    cdef void _start_reserved(self) noexcept nogil
    cdef double _earliest_start(self, long long task) noexcept nogil
    cdef void _reserve(self, long long task, double start) noexcept nogil
    cdef void _advance_reservation(self) noexcept nogil
    cdef void _undo_releases(self) noexcept nogil
    cdef void _raise_bounds(self) noexcept nogil
    cdef double _longest_on_freed(self, long long demand) noexcept nogil
    cdef double _longest(self, long long demand) noexcept nogil
    cdef void _backfill(self) noexcept nogil
    cdef long long _candidate(self) noexcept nogil
    cdef bint _start_in_gap(self, long long task) noexcept nogil
    cdef void _wake(self) noexcept nogil
    cdef void _set_wake(self) noexcept nogil
    @cython.locals(is_open=cython.bint)
    cdef void _note_fitting(self, long long first_arrival) noexcept nogil
