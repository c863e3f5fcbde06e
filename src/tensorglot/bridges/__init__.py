"""Other libraries: conversion of their values, both ways, and verbs in their own terms.

    table       the bridge for the library of a value
    drop_in     the functions of safetensors and bintensors, for `tensorglot.numpy`, `.torch` and `.jax`
    torch       tensors; torch_layouts sparse and quantized ones; torch_module whole modules; torch_sharing memory
    dcp         distributed checkpoints of PyTorch: a writer and a reader
    jax         arrays
    dask        lazy arrays of any source
    dlpack      any exporter of DLPack, small floats included
    awkward     ragged arrays, by their layouts
    arrow       arrays, by their buffers; arrow_plain decodes their encodings, arrow_extensions their
                extension types; arrow_export is the way out
    tables      Arrow tables that keep the type of a value, and pandas and polars through them
    parquet     the same in files
    pandas      columns and tables; polars the same
    scipy       sparse matrices
    pymongo     BSON vectors, ours and the driver's

A library is imported with the first value of it, never before.
"""
