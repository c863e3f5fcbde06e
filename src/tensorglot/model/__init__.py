"""What a tensor is, without knowing any file, format or library.

dtypes             the table of element types
types              the DyND types: algebra and text
payload            where bytes are: at a span of a source, encoded at a span, or in memory
needed_twice       chunks that a writer reads twice; chunks from a server are kept meanwhile
lazy_source        a source that is opened when it is first read
strided            a codec for elements in another order than C order
subbyte            a codec for sub-byte elements stored one per byte
computed           payloads that a codec computes, stored nowhere
nonzero_bools      a codec for bools in which every non-zero byte is true
slicing            basic indexing, as a few runs of bytes
advanced_indexing  indexing by a list, an array or a mask along one axis, as a few basic indices
tensor             a type plus named flat parts
layouts            the parts of sparse and quantized tensors, and their rules
index              all tensors of a file as columns, with `take` and `concat`
repeated           bounds the total size of tensors that share or repeat bytes of their file
builder            builds an index one tensor at a time
names              the names of an index, as spans of its text
archive            an index bound to a source: a mapping from names to tensors
deferred           an archive at a server, whose index is read when it is needed
"""
