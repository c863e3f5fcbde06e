"""Any value that a caller may have, to a Tensor.

    anything    `coerce`, which every verb uses; `typeof`, the type of its result
    numpy       arrays to types and columns
    infer       the type of a plain Python value
    python      plain Python values to columns

Values of other libraries are recognised by the table in `tensorglot.bridges`, which is
passed to this layer: it imports nothing from there.
"""
