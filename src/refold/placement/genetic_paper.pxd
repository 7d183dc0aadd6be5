cimport cython
from refold.placement.genetic_decoding cimport PlacementState, Solution, Window, can_host, change_usage, mark_infeasible
from refold.placement.genetic_operators cimport Random, next_random, random_fraction, select_by_tournament, sort_by_keys
from refold.placement.kernels cimport FreeArrays, need_at, pick_gpus

cdef long long WHOLE, GPU_MASK, GPUS, LOOSEST, NODE, TIGHTEST, POPULATION, TOURNAMENT, CHILDREN
cdef double UNFIT_MUTATION, FIT_MUTATION, MISFIT_FITNESS

cpdef double pair_fitness(FreeArrays free, long long machine, long long[:, ::1] demands, long long row) noexcept nogil
@cython.locals(
    machine=cython.longlong[::1], task=cython.longlong[::1], order=cython.longlong[::1], scratch=cython.longlong[::1],
    child_machine=cython.longlong[::1], child_task=cython.longlong[::1], fitness=cython.double[::1]
)
cpdef (double, long long, long long) best_pair(
    FreeArrays free, long long[:, ::1] demands, long long[::1] tasks, long long generations, Random rng
) except *
cdef double _mean(double[::1] values) noexcept nogil
@cython.locals(
    tasks=cython.longlong[::1], job_of=cython.longlong[::1], row_of_task=cython.longlong[::1],
    missing=cython.longlong[::1]
)
cpdef void evolve_paper(PlacementState state, Window window, Random rng, object placements, object placed) except *
