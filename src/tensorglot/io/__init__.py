"""Where bytes come from and go to.

local       a buffer, a file by pread or mmap, a file object
sink        a file that is replaced atomically and durably, or a file object
"""
