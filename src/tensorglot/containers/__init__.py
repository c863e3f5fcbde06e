"""One module or folder for each format, and the table of their specs with detection.

    table           the specs, and the detection of formats
    canonical       the checks of strict reading
    bintensors      .bt, layouts 0 and 1
    ztensor         .zt, versions 0.1, 1.x and 2
    dynd            .dynd, values of any type
    bson            .bson, MongoDB dumps: the vector fields as matrices
    safetensors     .safetensors
    npz, npy        NumPy's files
    gguf            .gguf
    pt              .pt, files of torch.save; read only, executes nothing
    onnx            .onnx, the initializers of a model; read only
    hdf5            .h5, .keras: HDF5 datasets and the weights of Keras; read only
    delta           .tgdelta, the difference between two versions, listed and checked
    dcp             directories of torch.distributed.checkpoint, and our own kind of them
    torchsave       shared by pt and dcp: pickles and storages of torch.save
    store           commits of a store, which are not files

A format is two functions and a spec: `read(source, options) -> Index` and
`write(archive, options) -> iterator of chunks`. No format imports another.
"""
