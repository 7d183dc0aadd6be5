cimport cython
from refold.placement.allowed cimport AllowedRows
from refold.placement.kernels cimport EncodedDemand, FreeArrays

cdef dict _MASKS, _INDICES

cpdef object mask_from_indices(tuple gpus)
cpdef tuple indices_from_mask(object mask)

cdef class FreeResources:
    cdef readonly object cluster, nodes, gpus, bits, room
    cdef readonly FreeArrays arrays
    cdef readonly object down_nodes, down_gpus
    cdef dict _encoded, _fits_when_empty

    cdef void _set_arrays(self, object nodes, object gpus, object bits, object room, AllowedRows allowed) except *
    @cython.locals(other=FreeResources)
    cpdef FreeResources copy(self, FreeResources into=*)
    cpdef EncodedDemand encoded(self, object demand)
    cpdef str take(self, tuple placement)
    cdef str _take(self, object share)
    cpdef void release(self, object placement) except *
    cpdef void retake(self, object placement) except *
    cpdef bint fits_one_instance(self, object demand) except *
    cpdef bint fits_when_empty(self, object demand) except *

cdef bint _fits_in_empty_cluster(object cluster, object demand) except *
cdef object _instances_on_empty_node(
    object cluster, object gpus, object gpu_type, object cpu, object memory, object demand
)
cdef tuple _build_arrays(object cluster)
cdef object _build_room(object nodes, AllowedRows allowed)
