#!/usr/bin/env bash
# A file for `ch-run --set-env=FILE`, with lines NAME=VALUE as for `docker run --env-file` or a shell.
#
# One would guess: either all is taken as it stands, as docker and podman do, or all is read as a shell reads it.
# What happens: something of both. Single quotes around a value go, double quotes stay in it. $NAME is
# expanded, but only as a whole part between colons; ${NAME} and $NAME with anything beside it become
# nothing at all, without a word.
# Seen with Charliecloud 0.31 of Debian 12. Needs root, or user namespaces for users.
#
#   A='a b'  B="a b"  C=$X  D=/d:$X  E=${X}  F=$X/e  with X=x:
#   A=a b    B="a b"  C=x   D=/d:x   E=      F=
. "$(dirname "$0")/common.bash" || exit 2
debs charliecloud-runtime=0.31-1 charliecloud-common=0.31-1 libsquashfuse0=0.1.105-1 libfuse3-3=3.14.0-4 \
	busybox-static=1:1.35.0-4+deb12u1+b1
mkdir -p image/{bin,dev,etc,home,proc,root,sys,tmp,usr,var}
cp root/bin/busybox image/bin/env
touch image/etc/{passwd,group,hosts,resolv.conf}
cat >variables <<'END'
A='a b'
B="a b"
C=$X
D=/d:$X
E=${X}
F=$X/e
END
export X=x USER=${USER:-root} HOME=/
ch-run --set-env=variables image -- /bin/env | grep '^[A-F]=' >seen
expect "in the container" "A=a b B=\"a b\" C=x D=/d:x E= F=" "$(paste -sd' ' seen)"
