"""Reading what `torch.save` writes, executing nothing: shared by the formats `pt` and `dcp`.

opcodes     loads a pickle; opcodes and globals that are not allowed are refused by name
names       the globals that are allowed, and our value of each
files       the pickle and the storages in a file
flatten     tensors and plain values by the keys that lead to them
tensors     a view of a storage as a row of an index
views       many views as an index, in columns
parts       sparse and quantized tensors, as rows of several parts
"""
