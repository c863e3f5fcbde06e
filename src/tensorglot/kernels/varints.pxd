# The numbers of `varints.py` as constants of C; the meaning of each is there.

cdef enum:
    BLOCK, LIST, OPTION, SENTINEL, SEQUENCE, REPEAT, CHAR, BOX, EDGE

cdef enum:
    RANGE = -8, UTF8, EMPTY, FLAG, COUNT, TRUNCATED, PADDED, LONG, DONE, MORE, GROW, HELP
