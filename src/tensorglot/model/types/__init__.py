"""DyND types: values that compare, hash and print canonically.

base        what every type has
algebra     the types, and questions about them
temporal    dates, times, durations and decimals
scan        the tokens of a type string
rows        canonical text as rows of types, from which they are made
text        type strings to types, and back in the canonical form
"""
