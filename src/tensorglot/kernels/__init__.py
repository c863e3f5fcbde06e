"""The few loops that must be compiled, in Cython's pure Python mode.

A kernel is a plain Python module with Cython's annotations. Where a C compiler was
present at build time it is an extension module; elsewhere the same file runs
interpreted, slower and with the same results. Kernels know bytes and columns of
numbers, nothing of tensors or files, and check every bound before they touch a byte.

A kernel reports a fault as a value, never by raising: its first two results are a code
and the position of the fault. The code of success is 0; the codes of CBOR are names, and
that of success is empty. The caller has the messages.

    bintensors     the header of BinTensors to columns
    safetensors    the JSON header of safetensors to columns
    encode_headers the headers of both and the index of zTensor 0.1, from columns
    cbor_check     validates CBOR against a profile
    cbor_scan      validated CBOR to columns: maps of known fields, ends of items
    cbor_values    validated CBOR to Python values
    varint_decode  varint chains of ragged data to columns
    varint_encode  columns back to varint chains
    type_rows      texts of types to rows
    type_sizes     sizes of the values of types in rows
    skip_values    where serialized values of such types end
    bson_walk      walks BSON documents, to a field or to every vector
    bson_rows      rows of equal length to and from BSON
    buffers        the buffer protocol for classes written in Python: a base class, no loop
    names          names as spans of a header
    ndarrays       arrays of a caller as columns
    crc32c_rows    the CRC-32C of many short spans of a buffer
    lookup3        the checksum of HDF5's structures
    utf8           validates UTF-8
    gather         pieces of one buffer to their places in another
    pickle_steps   interprets the pickles of tensors
    pickle_values  the values of a pickle as names and leaves
    pickle_views   the tensors of a pickle as columns
    protobuf       fields of a Protocol Buffers message, tensors of an ONNX graph
    planes         byte planes of elements, and of the deltas between two buffers
    entropy        the entropy of byte planes
    sparse_encode  the elements in which two buffers differ, as gaps and values
    sparse_decode  applies them to a buffer
    packed_encode  sparse deltas as bits
    packed_decode  applies those to a buffer
    zstd_blocks    where a zstd frame ends

Eight modules are not compiled. varints defines the opcodes and answer codes of the two
varint kernels and skip_values, type_codes the codes of types, sparse and packed_deltas what
their encoders and decoders share. primitives has the functions that kernels share, in
Python; their C form is `primitives.pxd`. varints, type_codes, cbor_heads (the heads of CBOR)
and crc32c_step (the processor's CRC-32C instruction) have a C form in the same way. nocython
replaces the `cython` module where Cython is not installed.
"""
