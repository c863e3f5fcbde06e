"""DyND types: values that compare, hash and print canonically.

base        what every type has
algebra     the types, and questions about them
temporal    dates, times, durations and decimals
scan        the tokens of a type string
items       the items of a tuple or struct in canonical text
text        type strings to types, and back in the canonical form
"""
