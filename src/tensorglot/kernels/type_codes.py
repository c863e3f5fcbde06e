"""The codes of types in rows, which `type_rows` reads from texts and `type_sizes` measures.

A row is a type in a text, before the types inside it. Codes before SYMBOL, and those of
brackets, are also kinds of the caller's words: a name that is a type, or opens one.
"""

ELEMENT = 0  # a number
FLAT = 1  # any other value of a fixed size
TEXT = 2  # a list of bytes
CHAR = 3
SYMBOL = 4
FIXED = 5
VAR = 6
SYMBOLIC_DIM = 7
OPTION = 8
POINTER = 9
ARRAY = 10
MERKLE = 11
MAP = 12
STORAGE = 13
PAIR = 14  # the key and the item of a map: no type
TUPLE = 15
STRUCT = 16
FUNCTION = 17
# Kinds of words alone.
COMPLEX = 18  # opens a word, or a variable
ENUMERATED = 19  # opens a word
BYTES = 20
FIXED_STRING = 21
DATETIME = 22
DECIMAL = 23
ENCODING = 24  # what follows the size of a fixed_string, with the bracket
UNIT = 25  # a unit of time, in quotes
