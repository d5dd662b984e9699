"""What the compiled scorer offers other compiled modules."""

cimport cython
from cpython.array cimport array
from libc.stdint cimport uint8_t, uint32_t


cdef enum:
    SIGNALS = 18


cdef struct Text:
    # In lower case, in UTF-8.
    const uint8_t* bytes
    Py_ssize_t size
    Py_ssize_t characters  # of what it was before
    double foreign  # the part of its bytes that more than one a character make up; < 0: ASCII


cdef struct Facts:
    # What a view says beside its text.
    Py_ssize_t length
    Py_ssize_t turns
    bint tools
    bint schema
    bint images
    bint continued


@cython.final
cdef class Reading:
    cdef str text
    cdef str system
    cdef Facts facts
    cdef bytes opening
    cdef double score
    cdef tuple reasons
    cdef bytes features

    cdef object view(self)
    cdef object scored(self)


@cython.final
cdef class Compiled:
    cdef double bias, centre, scale, usual_wording, least_reason, extreme
    cdef double weights[SIGNALS]
    cdef double slopes[SIGNALS]
    cdef double usual[SIGNALS]
    cdef array table
    cdef list telling

    cdef Reading reading(self, dict members)
    cdef int _measure(self, Reading reading) except -1
    cdef int _score_text(self, const Text* text, Reading reading) except -1
    cdef double _wording(self, const uint32_t* hashes, Py_ssize_t count) noexcept
    cdef double _score(self, const uint8_t* signals, double wording) noexcept
    cdef tuple _reasons(self, const uint8_t* signals, double wording)
    cdef object _reason(self, Py_ssize_t place, const uint8_t* signals, const double* moved)
