# The C form of `crc32c_step.py`, with the CRC-32C instruction of SSE 4.2 or ARMv8.1. On x86
# its presence is tested at run time, because the wheel is compiled for every processor.
# Without the instruction the loop over bits is correct but slow; `is_fast` tells callers so.

cdef extern from *:
    """
    #include <string.h>

    #if defined(__x86_64__) && defined(__GNUC__)
        #define CRC32C_TARGET __attribute__((target("sse4.2")))
        #define CRC32C_WORD(crc, word) ((unsigned int)__builtin_ia32_crc32di(crc, word))
        #define CRC32C_BYTE(crc, byte) __builtin_ia32_crc32qi(crc, byte)
        static int crc32c_has_instruction(void) { return __builtin_cpu_supports("sse4.2") != 0; }
    #elif defined(__ARM_FEATURE_CRC32)
        #include <arm_acle.h>
        #define CRC32C_TARGET
        #define CRC32C_WORD(crc, word) __crc32cd(crc, word)
        #define CRC32C_BYTE(crc, byte) __crc32cb(crc, byte)
        static int crc32c_has_instruction(void) { return 1; }
    #else
        static int crc32c_has_instruction(void) { return 0; }
    #endif

    #ifdef CRC32C_TARGET
    CRC32C_TARGET static unsigned int crc32c_by_instruction(const unsigned char *data, Py_ssize_t nbytes)
    {
        unsigned int crc = 0xFFFFFFFFu;
        unsigned long long word;
        for (; nbytes >= 8; nbytes -= 8, data += 8) {
            memcpy(&word, data, 8);
            crc = CRC32C_WORD(crc, word);
        }
        for (; nbytes > 0; nbytes--, data++)
            crc = CRC32C_BYTE(crc, *data);
        return ~crc;
    }
    #endif

    static unsigned int crc32c_step(const unsigned char *data, Py_ssize_t begin, Py_ssize_t end)
    {
        unsigned int crc = 0xFFFFFFFFu;
        int bit;
    #ifdef CRC32C_TARGET
        if (crc32c_has_instruction())
            return crc32c_by_instruction(data + begin, end - begin);
    #endif
        for (; begin < end; begin++) {
            crc ^= data[begin];
            for (bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1)));
        }
        return ~crc;
    }
    """
    int crc32c_has_instruction() noexcept nogil
    unsigned int crc32c_step(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end) noexcept nogil
