# C types of the kernels: the counterparts of `layout.Need` and of the functions of `bits`.

cdef struct Need:
    long long instances
    long long gpus
    long long milli
    long long cpu
    long long memory
    long long types
    long long allowed

cdef extern from * nogil:
    """
    #define trailing_zeros(word) ((long long)__builtin_ctzll(word))
    static inline long long count_ones(unsigned long long word) {  /* the builtin is a call on older processors */
        word -= word >> 1 & 0x5555555555555555;
        word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
        return ((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
    }
    """
    long long trailing_zeros(unsigned long long word) noexcept
    long long count_ones(unsigned long long word) noexcept

cdef inline object view(object array):
    return array
