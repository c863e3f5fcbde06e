"""Where bytes come from and go to.

place       where a file or an object is: a caller's path or URL, parsed once
local       memory, or a regular file by pread or mmap
stream      file objects of the caller, to read and to write
remote      an object at a URL, by ranges
ranges      which ranges to request for many reads at once
folder      the files of one checkpoint
source      whatever a caller passes, as a source
reader      a place as a binary file, for other libraries
pieces      buffers and spans to be written
sink        a file that is replaced atomically and durably
upload      an object that is written as a whole
multipart   the same by several processes, each some parts of it
replacement the same, if the object is still the one that was read
target      whatever a caller passes, as a target
in_place    a file that is changed where it is

urls                URLs as text
storage_options     how to reach a server, kept secret
objects             requests to servers, through obstore
http                requests of our own, which follow no redirect with credentials
aws_profile         credentials in the files of AWS's tools
hub                 files of the Hugging Face hub
"""
