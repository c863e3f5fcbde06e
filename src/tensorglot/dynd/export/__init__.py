"""Columns to what people work with.

numpy       arrays, where NumPy has one
python      plain Python values
select      rows, fields and slices of nested values
dense       sparse and quantized tensors as the blocks of elements that they stand for
"""
