from refold.placement.free cimport FreeResources

cdef class Trial:
    cdef readonly FreeResources free
    cdef list _taken, _released

    cpdef object place(self, object placer, object demand)
    cpdef bint take(self, tuple placement) except *
    cpdef object commit(self, object wanted)
    cpdef void undo(self) except *
