"""Any value that a caller may have, to a Tensor.

    anything    `coerce`: the one door, for every verb; `typeof`, the type that it would have
    numpy       arrays to types and columns
    infer       the type of a plain Python value
    python      plain Python values to columns

Values of other libraries are known by the table in `tensorglot.bridges`, which this
layer is given and does not import.
"""
