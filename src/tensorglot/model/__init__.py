"""What a tensor is, without knowing any file, format or library.

dtypes      the table of element types
types       the DyND types: algebra and text
payload     where bytes are: a span of a source, encoded at one, in memory
strided     a codec for elements that do not lie in C order
subbyte     a codec for elements of less than a byte that take one each
truth       a codec for bools of which every byte but zero is true
slicing     a basic index as few runs of bytes
tensor      a type plus named flat parts
layouts     what the parts of sparse and quantized tensors mean together
index       all tensors of a file as columns, with `take` and `concat`
builder     an index made one tensor at a time
names       the names of an index, as spans of its text
archive     an index bound to a source: a mapping from names to tensors
"""
