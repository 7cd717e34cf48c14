#!/usr/bin/env bash
# A program in JavaScript builds an image of a directory with dockerode: buildImage({context: DIR, src: ["Dockerfile",
# "app", "data"]}). DIR has a .dockerignore with "data" and "app/results".
#
# One would guess: neither is sent, as with `docker build`; or dockerode, which is given a list, does not look at the
# file at all.
# What happens: "data" is left out, for the names of the list are looked up in .dockerignore. What is below them is
# looked up with the whole path from the root of the host, which a pattern with a slash never meets. So app/results goes
# to the daemon and into the image, and one who has seen that "data" is missing there believes the rest. **/results
# helps.
# Seen with dockerode 5.0.1 of npm; a server here takes what is sent.
#
#   .dockerignore data, app/results: sent: Dockerfile app app/main app/results
#                 data, **/results:        Dockerfile app app/main
. "$(dirname "$0")/common.bash" || exit 2
npms dockerode@5.0.1
mkdir -p context/app context/data
touch context/{Dockerfile,app/main,app/results,data/large}
cat >program.js <<'END_OF_PROGRAM'
const fs = require("fs");
const http = require("http");
const path = require("path");
const zlib = require("zlib");
const Docker = require("dockerode");
const server = http.createServer((request, answer) => {
  request.pipe(zlib.createGunzip()).pipe(fs.createWriteStream("sent.tar")).on("finish", () => answer.end("{}\n"));
});
server.listen("socket", async () => {
  const docker = new Docker({ socketPath: "socket" });
  const files = { context: path.resolve("context"), src: ["Dockerfile", "app", "data"] };
  const stream = await docker.buildImage(files, { t: "image" });
  stream.resume();
  stream.on("end", () => server.close());
});
END_OF_PROGRAM
sent() { # PATTERN…: of .dockerignore
	printf '%s\n' "$@" >context/.dockerignore
	timeout 60 node program.js
	tar -tf sent.tar | xargs
}
expect "data, app/results" "Dockerfile app app/main app/results" "$(sent data app/results)"
expect "data, **/results" "Dockerfile app app/main" "$(sent data '**/results')"
