"""What a tensor is, without knowing any file, format or library.

dtypes      the table of element types
types       the DyND types: algebra and text
payload     where bytes are: a span of a source, encoded at one, in memory
needed_twice chunks that a writer needs twice, those of a server kept meanwhile
lazy_source a source that is opened when it is first read
strided     a codec for elements in another order than C order
subbyte     a codec for sub-byte elements stored one per byte
truth       a codec for bools in which every non-zero byte is true
slicing     a basic index as a few runs of bytes
picking     a list, an array or a mask along one axis
tensor      a type plus named flat parts
layouts     the parts of sparse and quantized tensors, and their rules
index       all tensors of a file as columns, with `take` and `concat`
repeated    what tensors may have beyond the bytes of their file
builder     an index made one tensor at a time
names       the names of an index, as spans of its text
archive     an index bound to a source: a mapping from names to tensors
deferred    an archive at a server, whose index is read when it is needed
"""
