cimport cython
from refold.placement.demand_history cimport row_of
from refold.placement.genetic_decoding cimport (
    ANY_NODE, Genome, PlacementState, Solution, Window, count_placed, decode, job_gpus, mark_infeasible, place_rest,
    release_all
)
from refold.placement.genetic_operators cimport Random, next_random, random_fraction, select_by_tournament, sort_by_keys
from refold.placement.genetic_refill cimport refill_nodes
from refold.placement.kernels cimport need_at
from refold.placement.lookahead cimport find_least_loss_node
from refold.placement.worth cimport update_type_prices

cdef long long CPU_FREE, FIRST_GPU, GPUS, MILLI_FREE, UP, NODE_HASH, POPULATION, GREEDY_SOLUTIONS, TOURNAMENT
cdef long long MAX_STALE_CHILDREN, MAX_DECODED_INSTANCES, MIN_DECODED_SOLUTIONS
cdef double MEAN_MUTATIONS, GAP_FILLER_WORTH, INFINITE

cpdef void evolve(PlacementState state, Window window, Random rng, object placements, object placed) except *
@cython.locals(fitness=cython.double[::1], child=Genome, fittest=Genome, mother=Genome, father=Genome)
cdef Genome _search(PlacementState state, Window window, long long placeable, Random rng, Solution solution)
cdef long long _fittest(double[::1] fitness) noexcept nogil
cdef long long _least_fit(double[::1] fitness) noexcept nogil
@cython.locals(from_mother=cython.bint)
cdef void _crossover(Window window, Genome mother, Genome father, Random rng, Genome child) noexcept nogil
@cython.locals(to_random_nodes=cython.bint)
cdef void _mutate(Window window, long long nodes, Genome genome, Random rng, double share) noexcept nogil
@cython.locals(
    costs=cython.double[::1], genome=Genome, weight=cython.double, fills_gaps=cython.bint, in_arrival_order=cython.bint
)
cdef void _seed_keys(PlacementState state, Window window, list members, Solution solution) except *
@cython.locals(costs=cython.double[::1])
cdef object _demand_costs(PlacementState state, Window window)
@cython.locals(worth=cython.double, cpu=cython.double)
cdef (double, double) _free_worth(PlacementState state) noexcept nogil
