"""Bytes to values and back. Knows no tensor and no file: functions take bytes, or a function that reads them.

cbor            strict and lenient CBOR
json            JSON without duplicate keys or numbers that do not fit
bson            documents: sizes, kinds, paths
bson_arrays     the arrays of numbers of many documents
bson_fields     the vector fields of many documents
bson_template   documents of equal length, filled into one template
bson_value      documents as Python values
bson_vector     the payload of a vector
zstd            frames, decoded to exactly their declared size
seektable       the table of frames of seekable zstd
gzipped         gzip with a bound on the decompressed size
inflate         deflate streams, decoded sequentially to a declared size
ziparchive      the directory and the members of a ZIP file
npy             the header of NumPy's files
prefixed        a length-prefixed header, then the data
fetch           a cursor that reads a header in blocks, up to a limit
checksums       crc32c, xxh3, sha256, crc32: parsed and computed
crc             CRC-32 of a suffix, from the CRC-32 of the whole
cid             CIDs, and trees of chunks
"""
