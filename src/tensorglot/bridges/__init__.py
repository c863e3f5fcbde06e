"""Other libraries: conversion of their values, both ways, and verbs in their own terms.

    table       the bridge for the library of a value
    torch       tensors, whole modules (`save_model`, `load_model`)
    dcp         distributed checkpoints of PyTorch: a writer and a reader
    jax         arrays
    dask        lazy arrays of any source
    dlpack      any exporter of DLPack, small floats included
    awkward     ragged arrays, by their layouts
    arrow       arrays and tables, by their buffers; arrow_export is the way out
    pandas      columns and tables; polars the same
    scipy       sparse matrices
    pymongo     BSON vectors, ours and the driver's

A library is imported with the first value of it, never before.
"""
