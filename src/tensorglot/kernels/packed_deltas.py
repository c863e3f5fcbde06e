"""Sparse deltas as bits, close to their entropy: Rice codes for gaps, a few low bits for values, and exceptions.

Which elements a training step changes is nearly random, so the gaps between them are distributed
geometrically: Rice codes are the best code with a whole number of bits for such numbers. Nearly
all differences are 1 or -1, which take one bit. No table has to be stored, as Huffman's would be
for each chunk. A delta has four sections; each starts at a byte, and its first bit is the lowest one:

    head        eight bytes: width 4 bits, a 5, b 6, c 5, count 21, exceptions 21
    low bits    for every change: the lowest a bits of its gap, the lowest b bits of its value
    high gaps   for every change: the other bits of its gap, in unary (that many zeros, and a one)
    exceptions  for every value of more than b bits: the number of changes since the last exception, as a Rice code
                (the bits from c on in unary, then the c low bits); then its bits from b on, a number above zero, as
                an Elias gamma code (as many zeros as bits follow the highest bit, a one, and these bits)

A gap is the number of unchanged elements before a change. A value is the zigzag difference minus one, since a
difference of zero is no change.

`packed_encode` writes such deltas, and `packed_decode` applies them.
"""

HEAD_NBYTES = 8
WIDTHS = (1, 2, 4)
"""Bytes of an element that a packed delta may have."""
MOST = 1 << 19
"""The most elements that a packed delta changes."""
MOST_BITS = 20
"""The most low bits of a gap, or of the number of changes between exceptions."""
CHANGE_NBYTES = 4
"""Bytes of working memory that `patch` needs for each change of a delta: its position, for the exceptions.
The loops repeat the number 4, and that of the head: with a literal the compiler generates faster code."""
SPARE = 8
"""Readable bytes that must follow the last delta: bits are loaded eight bytes at a time."""
