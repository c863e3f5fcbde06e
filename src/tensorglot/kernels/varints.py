"""Opcodes and answers of `varint_decode` and `varint_encode`, which process varint chains, and of `skip_values`.

A varint chain is the encoding of ragged data: elements as bytes, each list preceded by
its length as a varint. A program describes one type: the tree of its nodes as columns
with an entry for each node (`tensorglot.dynd.schema` defines them). Both kernels walk the
tree with an explicit stack of frames instead of recursion, so a run can stop where it
needs input, room or help, and resume there. A frame counts the values of its node that
are still to come; for a BLOCK, their bytes.

A run returns (answer, position).
"""

# Opcodes of nodes.
BLOCK = 0  # values of a fixed size, copied unchanged
LIST = 1  # a varint, then that many values of the child
OPTION = 2  # a flag byte, then one value of the child if the flag is 1
SENTINEL = 3  # one value of the child, a BLOCK, or fixed bytes of the same size if it is missing; only to encode
SEQUENCE = 4  # one value of each child
REPEAT = 5  # a fixed number of values of the child
CHAR = 6  # one UTF-8 character
BOX = 7  # one value that the caller decodes or encodes

# Answers.
DONE = 0
MORE = 1  # the input, or the output's room, does not suffice
GROW = 2  # a column of the decoder is full
HELP = 3  # a BOX is next
# Faults of the input at the position.
LONG = -1  # a varint of more than 63 bits
PADDED = -2  # a varint that is not in its shortest form
TRUNCATED = -3  # the input ends inside a varint
COUNT = -4  # a list longer than the input that is left
FLAG = -5  # an option's flag is neither 0 nor 1
EMPTY = -6  # more values without bytes than the caller allows
UTF8 = -7  # invalid UTF-8, or a code point that UTF-8 cannot encode
RANGE = -8  # a row of a column points outside the values of its child
TYPE = -9  # the text before a value is not that of a type
DEPTH = -10  # values that bring their type are nested too deeply
