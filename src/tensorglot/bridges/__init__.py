"""Other people's libraries: their values in and out, and verbs in their own terms.

    table       which library a value comes from, and what is known of it
    torch       tensors, whole modules (`save_model`, `load_model`)
    jax         arrays
    dlpack      whatever exports DLPack, the small floats included
    awkward     ragged arrays, by their layouts
    arrow       arrays and tables, by their buffers; arrow_export is the way out
    pandas      columns and tables; polars the same
    scipy       sparse matrices
    pymongo     vectors as the driver has them

A library is imported when a value of it comes, never before.
"""
