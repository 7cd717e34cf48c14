"""What both ends know of FUSE (linux/fuse.h, version 7.31): numbers are in the node's byte order.

The supervisor has /dev/fuse, negotiates, and passes the other requests on; the shim answers.
"""

import struct

LARGEST = 1 << 20
"""The most bytes of a file in one request or answer."""

LONGEST = LARGEST + (1 << 16)
"""The most bytes of a request or an answer."""

ROOT, PROC = 1, 2
"""The numbers of the root directory and of `proc` in it: the supervisor mounts another one there,
which the kernel would undo if the number changed."""

IN = struct.Struct("=IIQQIIII")
"""What a request begins with: its length, code and number, that of a file, and who asks."""

OUT = struct.Struct("=IiQ")
"""What an answer begins with: its length, 0 or a negative error, the number of the request."""

RANGE = struct.Struct("=QQIIQII")
"""A part of an open file, in READ and WRITE: that's number, an offset and a length first."""

ROOM = struct.Struct("=QQQII")
"""FALLOCATE: an open file, an offset, a length, and `KEEP_SIZE`."""

KEEP_SIZE = 1

ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("=QQQQII")
ATTR_OUT = struct.Struct("=QII")
OPEN_OUT = struct.Struct("=QII")
STATFS_OUT = struct.Struct("=QQQQQIIII24x")
DIRENT = struct.Struct("=QQII")

(LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK) = range(1, 7)
(MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE) = range(8, 19)
FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, CREATE = 20, 25, 26, 27, 28, 29, 35
INTERRUPT, DESTROY = 36, 38
(BATCH_FORGET, FALLOCATE, READDIRPLUS, RENAME2, LSEEK) = range(42, 47)

UNANSWERED = (FORGET, INTERRUPT, DESTROY, BATCH_FORGET)
ENTRY_CODES = (LOOKUP, SYMLINK, MKNOD, MKDIR, LINK, CREATE)
OPENING, CLOSING = (OPEN, OPENDIR, CREATE), (RELEASE, RELEASEDIR)
