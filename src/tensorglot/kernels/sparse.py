"""What `sparse_encode` and `sparse_decode` share.

A sparse delta lists the elements that differ by gaps, a byte each: the number of equal elements
before the next one that differs. The byte 255 skips 255 equal elements and names no element; the
gap continues in the next byte.
"""

LONGEST = 255
"""The byte of gaps that skips this many elements, and names none."""
SPARE = 64
"""Entries of `positions` behind the last one that `differences` may overwrite: it compares 64 elements at once."""
COLUMNS = 6
"""Numbers that describe one delta in the table that `patch` is given."""
