"""The public verbs, a module each. They know no format: what a format can do is in its spec.

    open        a source, its format, its index: an archive
    load        all tensors of a file into memory, on several threads
    save        values to a file
    writer      more than fits in memory, as it comes
    convert     from one file to another, with a plan
    verify      structure, checksums, values
    diff        what differs between two archives
    stats       numbers that describe each tensor
    identify    a CID for each tensor, and one for all
    edit        other metadata in a file
    split       shards with an index; and `merge`
    listing     rows for `ls` and a summary for `info`
    excerpt     a slice as text, JSON or .npy

What they share:

    _as_archive         whatever a caller names or has, as an archive
    _options            what a caller says about writing
    _patterns           which tensors, under which names, in which types
    _progress           a function or a bar
    _conversion_plan    what a conversion will do, before it does anything
    _cast               values in another element type, with an account of losses
    _dequantize         the real values of quantized tensors
    _compare            two parts, element by element
    _elements           the values of a part as a stream of short arrays
    _outputs            arrays of the caller to read into
    _reads              memory filled from many places of a file
    _digests            checksums of many spans at once
    _checksums          the checksums of an archive, checked
    _sidecar            checksums beside a file
    _value_rules        values that a type forbids
    _shards             a checkpoint in several files
    _jsonable           values as JSON has them
"""
