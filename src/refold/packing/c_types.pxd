# C types of the kernels: the counterparts of `layout.Need` and of the functions of `bits`.

cdef struct Need:
    long long instances
    long long gpus
    long long milli
    long long cpu
    long long memory
    long long types

cdef extern from * nogil:
    """
    #define trailing_zeros(word) ((long long)__builtin_ctzll(word))
    #define count_ones(word) ((long long)__builtin_popcountll(word))
    """
    long long trailing_zeros(unsigned long long word) noexcept
    long long count_ones(unsigned long long word) noexcept
