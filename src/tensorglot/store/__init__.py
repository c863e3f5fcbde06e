"""A store of tensors: every version, for little more than one.

encodings  a chunk as bytes: raw, constant, byte planes, or a delta from an earlier chunk
"""
