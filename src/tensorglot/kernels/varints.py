"""Varint chains, bytes with counts between them: what `varint_decode` and `varint_encode` are told, and answer.

A program is the tree of one type, as rows with one for each node (`tensorglot.dynd.schema`
says what is in them). Both kernels walk it with a stack of frames, so that a run can stop
wherever input, room or help is needed and go on from there; depth costs no recursion.
A frame counts the values of its node that are to come, and of a BLOCK their bytes.

A run returns (answer, position).
"""

# What a node is.
BLOCK = 0  # values of a fixed size, as they are
LIST = 1  # a varint, and so many of the child
OPTION = 2  # a flag byte, and the child where it is 1
SENTINEL = 3  # the child, a BLOCK, or certain bytes of the same size where it is missing; only to encode
SEQUENCE = 4  # one each of several children
REPEAT = 5  # a fixed number of the child
CHAR = 6  # one UTF-8 character
BOX = 7  # the caller decodes or encodes it

# Answers. The negative ones are faults of what is at the position.
DONE, MORE, GROW, HELP = 0, 1, 2, 3
LONG, PADDED, ENDS, COUNT, FLAG, EMPTY, UTF8, RANGE = -1, -2, -3, -4, -5, -6, -7, -8
