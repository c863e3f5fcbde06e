"""Where bytes come from and go to.

place       `Place`: a caller's path or URL, parsed once
local       sources: memory, or a regular file read by pread or mmap
stream      the caller's file objects, to read and to write
remote      source: an object at a URL, read by ranges
ranges      plans which ranges to request for many reads at once
folder      the files of one checkpoint
source      `source_for`: the source for whatever a caller passes
reader      a place as a binary file object, for other libraries
pieces      buffers and spans to be written
sink        replaces a file atomically and durably
upload      writes an object, which is visible when it is complete
multipart   an upload whose parts several processes write
replacement replaces an object only if it still is the one that was read
target      `open_target`: the target for whatever a caller passes
in_place    changes the end of a file in place

urls                URLs as text
storage_options     how to reach a server, kept secret
objects             requests to servers, through obstore
http                requests of our own, which follow no redirect with credentials
aws_profile         credentials in the files of AWS's tools
hub                 files of the Hugging Face hub
"""
