#!/usr/bin/env bash
# A layer in zstd has several frames: one that pzstd or two `zstd >>` have written, or a layer that can be read in
# parts. A program in Python reads it with zstandard.
#
# One would guess: all of it, as from `zstd -d`, and from gzip, bz2 and lzma in Python, which all go on.
# What happens: it depends on the call. decompress(), read_to_iter() and decompressobj() stop after the first frame,
# without an error: half of the data. If the first frame has no data, as with pzstd, which begins with a note of
# sizes, the latter two give nothing at all. stream_reader(), open() and copy_stream() read all.
# Seen with zstandard 0.25.0 of PyPI, and zstd 1.5.4 of Debian 12.
#
#   two frames of 1000 bytes: decompress 1000, read_to_iter 1000, stream_reader 2000     of pzstd: read_to_iter 0
. "$(dirname "$0")/common.bash" || exit 2
pips zstandard==0.25.0
debs zstd=1.5.4+dfsg2-5+deb12u1
head -c 1000 /dev/zero >data
zstd -q -c data >two
zstd -q -c data >>two
pzstd -q data -o parallel 2>words
expect "zstd -d" "2000 1000" "$(zstd -q -dc two | wc -c) $(zstd -q -dc <parallel | wc -c)"
cat >program.py <<'END_OF_PROGRAM'
import io
import sys

import zstandard

data = open(sys.argv[1], "rb").read()
read = {
    "decompress": lambda one: one.decompress(data),
    "read_to_iter": lambda one: b"".join(one.read_to_iter(data)),
    "decompressobj": lambda one: one.decompressobj().decompress(data),
    "stream_reader": lambda one: one.stream_reader(io.BytesIO(data)).read(),
}
print(len(read[sys.argv[2]](zstandard.ZstdDecompressor())))
END_OF_PROGRAM
expect "decompress" 1000 "$(python program.py two decompress)"
expect "read_to_iter" 1000 "$(python program.py two read_to_iter)"
expect "decompressobj" 1000 "$(python program.py two decompressobj)"
expect "stream_reader" 2000 "$(python program.py two stream_reader)"
expect "of pzstd, read_to_iter" 0 "$(python program.py parallel read_to_iter)"
expect "of pzstd, decompressobj" 0 "$(python program.py parallel decompressobj)"
expect "of pzstd, stream_reader" 1000 "$(python program.py parallel stream_reader)"
