# The C forms of `primitives.py`, compiled into every kernel that imports them. The docstrings
# there are the contract of both forms; tests compare the two through the kernels.
#
# No function checks a bound: the caller has compared every position with its memory.

from cpython.buffer cimport PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memchr, memcmp, memcpy
from tensorglot.kernels cimport varints


cdef extern from *:
    """
    #include <string.h>

    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define TENSORGLOT_BIG_ENDIAN 1
    #else
    #define TENSORGLOT_BIG_ENDIAN 0
    #endif

    /* Loads go through memcpy: the addresses are not aligned, and a cast would be undefined behaviour. */
    static inline unsigned long long tensorglot_bits_at(const unsigned char* data, long long bit) {
        unsigned long long bits;
        memcpy(&bits, data + (bit >> 3), 8);
    #if TENSORGLOT_BIG_ENDIAN
        bits = __builtin_bswap64(bits);
    #endif
        return bits >> (bit & 7);
    }

    static inline void tensorglot_put_bits(unsigned char* out, unsigned long long bits) {
    #if TENSORGLOT_BIG_ENDIAN
        bits = __builtin_bswap64(bits);
    #endif
        memcpy(out, &bits, 8);
    }

    static inline void tensorglot_add_to(unsigned char* out, unsigned int value, Py_ssize_t width) {
        unsigned short two;
        unsigned int four;
        unsigned long long carried = value;
        if (width == 2 && !TENSORGLOT_BIG_ENDIAN) {
            memcpy(&two, out, 2);
            two += value;
            memcpy(out, &two, 2);
        } else if (width == 4 && !TENSORGLOT_BIG_ENDIAN) {
            memcpy(&four, out, 4);
            four += value;
            memcpy(out, &four, 4);
        } else {
            for (; width > 0; width--, out++, carried >>= 8) *out = (unsigned char)(carried += *out);
        }
    }

    #if defined(__GNUC__) || defined(__clang__)
    #define tensorglot_trailing_zeros(bits) __builtin_ctzll(bits)
    #define tensorglot_bit_length(bits) ((bits) ? 64 - __builtin_clzll(bits) : 0)
    #else
    static int tensorglot_trailing_zeros(unsigned long long bits) {
        int count = 0;
        for (; !(bits & 1); bits >>= 1) count++;
        return count;
    }
    static int tensorglot_bit_length(unsigned long long bits) {
        int count = 0;
        for (; bits; bits >>= 1) count++;
        return count;
    }
    #endif
    """
    unsigned long long bits_at "tensorglot_bits_at"(const unsigned char* data, long long bit) noexcept nogil
    void put_bits "tensorglot_put_bits"(unsigned char* out, unsigned long long bits) noexcept nogil
    void add_to "tensorglot_add_to"(unsigned char* out, unsigned int value, Py_ssize_t width) noexcept nogil
    int trailing_zeros "tensorglot_trailing_zeros"(unsigned long long bits) noexcept nogil
    int bit_length "tensorglot_bit_length"(unsigned long long bits) noexcept nogil


cdef enum:
    INVALID = -1
    ENDS = -2


cdef inline const unsigned char* uchars_in(const unsigned char[::1] view) noexcept:
    return &view[0]


cdef inline unsigned char* uchars_out(unsigned char[::1] view) noexcept:
    return &view[0]


cdef inline const long long* longlongs_in(const long long[::1] view) noexcept:
    return &view[0]


cdef inline long long* longlongs_out(long long[::1] view) noexcept:
    return &view[0]


cdef inline unsigned int* uints_out(unsigned int[::1] view) noexcept:
    return &view[0]


cdef inline void* _memory(object array, Py_ssize_t itemsize) except? NULL:
    # PyBUF_ND raises unless the array is contiguous. A typed memoryview would take four times as long. The pointer
    # stays valid after the release because kernels hold arrays and bytes, whose memory lives as long as they do.
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_ND)
    cdef void* memory = view.buf
    cdef bint fits = view.itemsize == itemsize
    PyBuffer_Release(&view)
    if not fits:
        raise ValueError("the array has elements of another size")
    return memory


cdef inline unsigned char* uchars_of(object array) except? NULL:
    return <unsigned char*>_memory(array, 1)


cdef inline unsigned int* uints_of(object array) except? NULL:
    return <unsigned int*>_memory(array, 4)


cdef inline long long* longlongs_of(object array) except? NULL:
    return <long long*>_memory(array, 8)


cdef inline unsigned long long* ulonglongs_of(object array) except? NULL:
    return <unsigned long long*>_memory(array, 8)


cdef inline Py_ssize_t shape_of(
    object array, long long* dims, Py_ssize_t room, long long* sizes, Py_ssize_t row
) except -2:
    cdef Py_buffer view
    cdef Py_ssize_t rank, i
    try:
        PyObject_GetBuffer(array, &view, PyBUF_ND)  # raises unless the array is contiguous
    except (BufferError, ValueError):
        return -1
    rank = view.ndim
    sizes[row] = view.len
    if rank <= room:
        for i in range(rank):
            dims[i] = view.shape[i]
    PyBuffer_Release(&view)
    return rank


cdef inline bint span_of(object buffer, long long* begins, long long* ends, Py_ssize_t row) except -1:
    cdef Py_buffer view
    try:
        PyObject_GetBuffer(buffer, &view, PyBUF_ND)
    except (BufferError, ValueError):
        return False
    begins[row] = <long long>view.buf
    ends[row] = begins[row] + view.len
    PyBuffer_Release(&view)
    return True


cdef inline unsigned long long address_of(object value) noexcept:
    return <unsigned long long><void*>value


cdef inline long long* longlongs_at(long long* data, Py_ssize_t at) noexcept nogil:
    return data + at


cdef inline bytes bytes_of(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end):
    return data[begin:end]


cdef inline unsigned int u32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    # Compilers turn this into one load.
    return (
        data[at]
        | <unsigned int>data[at + 1] << 8
        | <unsigned int>data[at + 2] << 16
        | <unsigned int>data[at + 3] << 24
    )


cdef inline long long i32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <int>u32(data, at)


cdef inline unsigned long long little(const unsigned char* data, Py_ssize_t at, Py_ssize_t nbytes) noexcept nogil:
    cdef unsigned long long value = 0
    cdef Py_ssize_t i
    if nbytes == 4:
        return u32(data, at)
    if nbytes == 8:
        return u32(data, at) | <unsigned long long>u32(data, at + 4) << 32
    for i in range(nbytes):
        value |= <unsigned long long>data[at + i] << (8 * i)
    return value


cdef inline unsigned long long word(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    cdef unsigned long long value
    memcpy(&value, data + at, 8)
    return value


cdef inline unsigned short ushort_at(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    cdef unsigned short value
    memcpy(&value, data + at, 2)
    return value


cdef inline unsigned int uint_at(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    cdef unsigned int value
    memcpy(&value, data + at, 4)
    return value


cdef inline void put_uint(unsigned char* out, Py_ssize_t at, unsigned int value) noexcept nogil:
    memcpy(out + at, &value, 4)


cdef inline void copy(
    unsigned char* out, Py_ssize_t to, const unsigned char* data, Py_ssize_t at, Py_ssize_t nbytes
) noexcept nogil:
    memcpy(out + to, data + at, nbytes)


cdef inline void copy_run(
    unsigned char* out,
    Py_ssize_t to,
    Py_ssize_t out_end,
    const unsigned char* data,
    Py_ssize_t at,
    Py_ssize_t data_end,
    Py_ssize_t nbytes,
    Py_ssize_t stride,
) noexcept nogil:
    # Every run of up to `stride` bytes copies exactly `stride` bytes, so that the branch predictor never misses the
    # loop's end. The excess bytes lie before both ends, and the runs that follow overwrite them.
    cdef Py_ssize_t i
    if nbytes <= stride and stride <= out_end - to and stride <= data_end - at:
        for i in range(0, stride, 32):
            memcpy(out + to + i, data + at + i, 32)
    elif nbytes > 0:
        memcpy(out + to, data + at, nbytes)


cdef inline bint same(
    const unsigned char* data, Py_ssize_t at, const unsigned char* other, Py_ssize_t other_at, Py_ssize_t nbytes
) noexcept nogil:
    return memcmp(data + at, other + other_at, nbytes) == 0


cdef inline Py_ssize_t zero_byte(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const unsigned char* found = <const unsigned char*>memchr(data + begin, 0, end - begin)
    return -1 if found == NULL else found - data


cdef inline bint is_ascii(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef unsigned long long seen = 0
    cdef Py_ssize_t at = begin
    while end - at >= 8:
        seen |= word(data, at)
        at += 8
    if end - begin >= 8:
        seen |= word(data, end - 8)  # the rest, and some bytes again
    else:
        while at < end:
            seen |= data[at]
            at += 1
    return seen & 0x8080808080808080ULL == 0


cdef inline long long code_point(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    cdef int first = data[at]
    cdef int low = 0x80
    cdef int high = 0xBF
    cdef Py_ssize_t following
    cdef Py_ssize_t i
    cdef long long code
    if first < 0x80:
        return first
    if first < 0xC2 or first > 0xF4:
        return INVALID
    following = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
    code = first & (0x3F >> following)
    # The range of the second byte alone excludes overlong forms, surrogates and code points beyond U+10FFFF
    # (Unicode Standard, table 3-7).
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    for i in range(at + 1, at + 1 + following):
        if i >= end:
            return ENDS
        if data[i] < low or data[i] > high:
            return INVALID
        code = code << 6 | data[i] & 0x3F
        low = 0x80
        high = 0xBF
    return code


cdef inline Py_ssize_t code_point_nbytes(long long code) noexcept nogil:
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


cdef inline Py_ssize_t invalid_utf8(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t at = begin
    cdef long long code
    while at < end:
        # Eight bytes of ASCII at once; otherwise one character.
        if end - at >= 8 and word(data, at) & 0x8080808080808080ULL == 0:
            at += 8
            continue
        code = code_point(data, at, end)
        if code < 0:
            return at
        at += code_point_nbytes(code)
    return -1


cdef inline bint exceeds(long long count, long long size, long long most) noexcept nogil:
    # Two factors below 2**31 have a product below 2**62. The division, far slower, is for the rest.
    if count < 0x80000000LL and size < 0x80000000LL:
        return count * size > most
    return size != 0 and count > most // size


cdef inline long long varint(const unsigned char* source, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    cdef long long value = 0
    cdef long long byte
    cdef int shift = 0
    # The value stays positive as long as shift < 63.
    while at < end:
        byte = source[at]
        if byte < 128:
            if byte == 0 and shift > 0:
                return varints.PADDED
            return value | (byte << shift)
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift == 63:
            return varints.LONG
    return varints.TRUNCATED


cdef inline Py_ssize_t varint_nbytes(long long value) noexcept nogil:
    cdef Py_ssize_t nbytes = 1
    while value > 127:
        value >>= 7
        nbytes += 1
    return nbytes


cdef inline Py_ssize_t run_stride(long long nbytes, long long count) noexcept nogil:
    cdef long long mean = nbytes // count if count > 0 else 0
    return min(256, (2 * mean + 31) // 32 * 32) if mean > 0 else 32
