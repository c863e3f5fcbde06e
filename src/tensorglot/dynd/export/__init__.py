"""Columns to the values that callers work with.

numpy       arrays, where NumPy has one
python      plain Python values
select      rows, fields and slices of nested values
dense       sparse and quantized tensors in dense form
"""
