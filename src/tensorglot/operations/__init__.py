"""The public verbs, a module each. They know no format: its spec says what it can do.

    open        a source, its format, its index: an archive
    load        all tensors of a file into memory, on several threads
    save        values to a file
    writer      more than fits in memory, tensor by tensor
    convert     from one file to another, with a plan
    quantize    small integers with scales: the schemes, and one value in memory
    verify      structure, checksums, values
    diff        what differs between two archives
    stats       minimum, maximum, mean, deviation of each tensor
    identify    a CID for each tensor, and one for all
    edit        other metadata and tensors in a file
    split       shards with an index; and `merge`
    listing     rows for `ls` and a summary for `info`
    tree        the same by the prefixes of names, with totals
    excerpt     a slice as text, JSON or .npy

What they share:

    _as_archive         any argument of a caller as an archive
    _options            options for writing
    _mistaken           what a file is that no reader accepts
    _places             paths and URLs among arguments become places
    _patterns           which tensors, under which names, in which types
    _cells              numbers and histograms in the cells of a table
    _progress           progress: a function or a bar
    _executor           jobs for workers that open the source themselves
    _revise             other tensors in a file, by one atomic copy or in place
    _conversion_plan    steps and losses of a conversion
    _convert_archive    the archive that a conversion writes
    _convert_on_workers a conversion by workers, to a file or an object
    _file_layout        a file with places for its rows
    _cast               values in another element type, counting losses
    _dequantize         the real values of quantized tensors
    _compare            two parts, element by element
    _distribution       counts, moments, norms, quantiles and a histogram of values, in one pass
    _moments            sums that neither overflow nor cancel
    _double_double      sums and square roots that are rounded once, for columns
    _equal_rows         tensors that are equal, by the columns of two indexes
    _small_rows         tensors so small that their rows are read in runs
    _small_stats        statistics of many small tensors together
    _elements           the values of a part as a stream of short arrays
    _outputs            the caller's arrays to read into
    _load_rows          raw dense tensors, by the columns of the index
    _reads              memory filled from many places of a file
    _digests            hashes of many rows at once
    _checksums          comparing the checksums of an archive
    _sidecar            checksums beside a file
    _open_several       lists of files, folders, and URLs that may be one
    _shards             a checkpoint in several files
    _jsonable           values as JSON
    _same_value         whether two values of metadata are the same
"""
