"""Where bytes come from and go to.

local       memory, or a regular file by pread or mmap
stream      file objects of the caller, to read and to write
source      whatever a caller passes, as a source
pieces      buffers and spans to be written
sink        a file that is replaced atomically and durably
in_place    a file that is changed where it is
"""
