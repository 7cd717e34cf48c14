#!/usr/bin/env bash
# A program with the set-user-ID bit in the build context: `COPY . /x` in a Dockerfile, `buildah copy`, and ADD of
# a tar archive.
#
# One would guess: the mode of the file is kept, all three times; or never.
# What happens: COPY takes set-user-ID and set-group-ID away, of directories too, without a word. `buildah copy`
# and an archive keep them. What worked in a script of buildah commands fails as a Dockerfile.
# Seen with buildah 1.28.2 of Debian 12. Needs root.
#
#   context: 4755 program, 2775 directory    COPY: 755, 775    buildah copy, ADD files.tar: 4755, 2775
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs buildah=1.28.2+ds1-3+deb12u1+b3 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 \
	libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1
mkdir -p context/files/directory tmp
touch context/files/program
chmod 4755 context/files/program
chmod 2775 context/files/directory
tar -C context/files -cf context/files.tar .
cat >context/Dockerfile <<'END'
FROM scratch
COPY files /copy
ADD files.tar /add
END
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
echo 'unqualified-search-registries = []' >registries.conf
export TMPDIR=$place/tmp BUILDAH_ISOLATION=chroot
build() { # COMMAND ARGUMENT…
	buildah --root "$place/kept" --runroot "$place/run" --storage-driver vfs \
		--registries-conf "$place/registries.conf" "$@"
}
modes() { stat -c %a "$1/program" "$1/directory" | xargs; }
image=$(build build -q --signature-policy "$place/policy.json" context)
tree=$(build mount "$(build from --signature-policy "$place/policy.json" "$image")")
expect "COPY" "755 775" "$(modes "$tree/copy")"
expect "ADD of an archive" "4755 2775" "$(modes "$tree/add")"
container=$(build from scratch)
build copy -q "$container" context/files /copy >words
expect "buildah copy" "4755 2775" "$(modes "$(build mount "$container")/copy")"
