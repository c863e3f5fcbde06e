"""Columns to canonical bytes and back.

program     a schema as the rows that the kernel runs
encode      columns to bytes
decode      bytes to columns, in one pass
skip        where values end, without decoding them
inputs      the bytes to decode: memory or a stream
growable    memory that grows while a column is filled
packing     values of a fixed size, between bytes and columns
boxes       the values in `array[T]`
check       what the bytes of values may be
"""
