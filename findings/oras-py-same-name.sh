#!/usr/bin/env bash
# Results are put into a registry with the module oras of Python, from two directories: push(target=…,
# files=["a/result", "b/result"]).
#
# One would guess: pull() brings back a/result and b/result, as the program oras does, since each layer has the name as
# a title; or push refuses two files of one name.
# What happens: the title is the last part of the path. Both layers are in the registry, both are called "result", and
# pull() writes one over the other: the list that it returns has the same path twice, and the first file is lost.
# Not a word, from either.
# Seen with oras 0.2.43 of PyPI and docker-registry 2.8.2 of Debian 12.
#
#   pulled: out/result out/result; files: result, of b
. "$(dirname "$0")/common.bash" || exit 2
debs docker-registry=2.8.2+ds1-1
unset LD_LIBRARY_PATH
pips oras==0.2.43
registry=127.0.0.1:$((20000 + RANDOM % 9000))
cat >registry.yml <<-END
	version: 0.1
	storage: {filesystem: {rootdirectory: $place/kept}}
	http: {addr: $registry}
	log: {level: error}
END
docker-registry serve registry.yml >log 2>&1 &
on_exit+=("kill $!; wait $!")
for ((try = 0; try < 100; try++)); do
	! curl -sf "http://$registry/v2/" >/dev/null || break
	sleep 0.1
done
curl -sf "http://$registry/v2/" >/dev/null || cannot "the registry does not start: $(tail -n 1 log)"
mkdir a b out
echo of a >a/result
echo of b >b/result
cat >program.py <<'END_OF_PROGRAM'
import sys

import oras.client

target = sys.argv[1] + "/results:1"
client = oras.client.OrasClient(insecure=True)
client.push(target=target, files=["a/result", "b/result"])
layers = client.get_manifest(target)["layers"]
title = "org.opencontainers.image.title"
print(len({layer["digest"] for layer in layers}), *(layer["annotations"][title] for layer in layers))
print(*client.pull(target=target, outdir="out"))
END_OF_PROGRAM
python program.py "$registry" >seen 2>words || cannot "push and pull: $(tail -n 1 words)"
expect "layers and titles" "2 result result" "$(grep '^2 ' seen)"
expect "pulled" "out/result out/result" "$(tail -n 1 seen | sed "s,$place/,,g")"
expect "files" "out out/result" "$(find out | xargs)"
expect "content" "of b" "$(<out/result)"
