# The C forms of `cbor_heads.py`, compiled into the CBOR kernels. The docstrings there are
# the contract of both forms; tests compare the two through the kernels.

cdef enum:
    OK
    ENDS
    RESERVED

cdef enum:
    UINT
    NEGATIVE
    BYTES
    TEXT
    ARRAY
    MAP
    TAG
    SPECIAL

cdef enum:
    OPEN_ENDED = 31
    BREAK = 0xFF


cdef inline Py_ssize_t head_end(const unsigned char* data, Py_ssize_t pos, Py_ssize_t end) noexcept nogil:
    cdef int info
    if pos >= end:
        return -ENDS
    info = data[pos] & 31
    if info < 24 or info == OPEN_ENDED:
        return pos + 1
    if info > 27:
        return -RESERVED
    return pos + 1 + (1 << (info - 24)) if end - pos > 1 << (info - 24) else -ENDS


cdef inline unsigned long long argument_of(
    const unsigned char* data, Py_ssize_t pos, Py_ssize_t head_end
) noexcept nogil:
    cdef unsigned long long argument = 0
    if head_end == pos + 1:
        return data[pos] & 31
    while pos + 1 < head_end:
        pos += 1
        argument = (argument << 8) | data[pos]
    return argument
