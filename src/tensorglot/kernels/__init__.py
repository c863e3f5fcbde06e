"""The few loops that must be compiled, in Cython's pure Python mode.

A kernel is a plain Python module with Cython's annotations. Where a C compiler was
present at build time it is an extension module; elsewhere the same file runs
interpreted, slower and with the same results. Kernels know bytes and columns of
numbers, nothing of tensors or files, and check every bound before they touch a byte.

A kernel reports a refusal as a value (a rule code and a position), never by
raising: the caller owns the words.
"""
