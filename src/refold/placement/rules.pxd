cimport cython
from refold.placement.allowed cimport allow_part, has_request
from refold.placement.c_types cimport Need, trailing_zeros
from refold.placement.demand_history cimport DemandHistory, ScoreCache, row_of
from refold.placement.domains cimport Parts, choose_domains
from refold.placement.kernels cimport (
    EncodedDemand,
    FreeArrays,
    adjust_free,
    any_node_of_size_with_free,
    any_node_with_free,
    candidate_row,
    fits,
    max_gpus_per_node,
    next_fitting_node,
    pick_gpus,
    words_per_row,
)
from refold.placement.lookahead cimport RackDraw, find_least_loss_node
from refold.placement.worth cimport update_type_prices

cdef long long WHOLE, UNLIMITED, CPU_PER_GPU, MEMORY_PER_GPU, FIRST, LOOSEST, TIGHTEST, NODE, GPU_MASK
cdef long long CPU_FREE, CPU_TOTAL, FIRST_GPU, GPUS, MAX_FREE, MEMORY_FREE, MEMORY_TOTAL, MILLI_FREE, WHOLE_FREE
cdef long long FIRST_FIT, BEST_FIT, WORST_FIT, ROUND_ROBIN, TETRIS, FGD, WORTH, RANDOM
cdef unsigned long long ONE, ALL_BITS, DRAW_HASH, NODE_HASH, FIRST_MIX, SECOND_MIX
cdef double INFINITE
cdef long long PART

cdef class GreedyRule:
    cdef long long number, seed, cursor, draws
    cdef public DemandHistory history
    cdef public ScoreCache cache
    cdef RackDraw no_power
    cdef long long[:, ::1] placements
    cdef Parts parts

    cpdef void make_room(self, long long instances) except *
    cpdef tuple place(self, FreeArrays free, EncodedDemand demand, long long demand_id)

cpdef tuple build_placement(EncodedDemand demand, long long[:, ::1] rows, long long first)

cdef bint _only_whole_gpus_matter(FreeArrays free, Need need) noexcept nogil
cdef bint _is_worth_best_fit(FreeArrays free, Need need, DemandHistory history) noexcept nogil
cdef long long _best_fit(FreeArrays free, Need need, long long last) noexcept nogil
cdef long long _worst_fit(FreeArrays free, Need need) noexcept nogil
cdef long long _tetris(FreeArrays free, Need need) noexcept nogil
cdef double _alignment(FreeArrays free, long long node, Need need) noexcept nogil
cdef long long _free_metric(FreeArrays free, long long node, Need need, bint tightest) noexcept nogil
@cython.locals(word=cython.ulonglong)
cdef double _hash(long long draw, long long node) noexcept nogil
@cython.locals(pending=cython.ulonglong)
cdef long long _lowest_score(long long rule, FreeArrays free, Need need, long long draw) noexcept nogil
cdef long long _round_robin(GreedyRule rule, FreeArrays free, Need need) noexcept nogil
@cython.locals(shared=cython.bint)
cdef long long _choose_node(
    GreedyRule rule, long long number, FreeArrays free, Need need, long long last, long long demand_id
) noexcept nogil
cdef long long _choose_gpus(
    GreedyRule rule, long long number, FreeArrays free, long long node, Need need, long long demand_id
) noexcept nogil
cdef bint place_instances(GreedyRule rule, FreeArrays free, Need need, long long demand_id) noexcept nogil
cdef bint _place_part(
    GreedyRule rule, long long number, FreeArrays free, Need need, long long placed, long long demand_id
) noexcept nogil
cdef long long _fill_node(
    GreedyRule rule, FreeArrays free, long long node, Need need, long long instance
) noexcept nogil
