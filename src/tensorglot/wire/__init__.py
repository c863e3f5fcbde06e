"""Bytes to values and back. Knows no tensor and no file: functions get bytes, or a function that reads them.

cbor            strict and lenient CBOR
json            JSON without duplicate keys or numbers that do not fit
bson            documents: sizes, kinds, paths
bson_fields     the vectors in many documents
bson_template   documents of equal length, woven from one
bson_value      documents as Python values
bson_vector     the payload of a vector
zstd            frames, decoded to exactly their declared size
seektable       the table of frames of seekable zstd
gzipped         gzip with a bound on what comes out
inflate         deflate, from any offset
ziparchive      the directory and the members of a ZIP file
npy             the header of NumPy's files
prefixed        a header behind its length
fetch           small reads together
checksums       crc32c, xxh3, sha256, crc32: as text, and computed
crc             CRC-32 of a rest from that of the whole
cid             CIDs, and nodes of chunks
"""
