# The numbers of `varints.py` as constants of C; the meaning of each is there.

cdef enum:
    BLOCK, LIST, OPTION, SENTINEL, SEQUENCE, REPEAT, CHAR, BOX

cdef enum:
    DEPTH = -10, TYPE, RANGE, UTF8, EMPTY, FLAG, COUNT, TRUNCATED, PADDED, LONG, DONE, MORE, GROW, HELP
