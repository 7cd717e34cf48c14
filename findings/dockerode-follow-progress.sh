#!/usr/bin/env bash
# A program in JavaScript builds an image with dockerode, and waits for its end as dockerode's README shows:
# docker.modem.followProgress(stream, (error, lines) => …). A RUN of the Dockerfile fails.
#
# One would guess: `error` is the error. The daemon says so in the stream, in a line of its own with "error", since the
# status of HTTP was sent long before.
# What happens: `error` is null, as after success, for it speaks of the connection alone. The line is the last of
# `lines`. So a build that failed is followed by a push or a run of the image that has this name since last week; a pull
# that fails half-way looks done, too.
# Seen with dockerode 5.0.1 of npm; a server here answers as the daemon does.
#
#   error: null, last line: {"error":"… returned a non-zero code: 3"}
. "$(dirname "$0")/common.bash" || exit 2
npms dockerode@5.0.1
cat >program.js <<'END_OF_PROGRAM'
const http = require("http");
const Docker = require("dockerode");
const server = http.createServer((request, answer) => {
  request.resume();
  request.on("end", () => {
    answer.write(JSON.stringify({ stream: "Step 2/2 : RUN exit 3\n" }) + "\n");
    answer.end(JSON.stringify({ error: "the command returned a non-zero code: 3" }) + "\n");
  });
});
const docker = new Docker({ socketPath: "socket" });
const wait = (stream) =>
  new Promise((resolve, reject) => {
    docker.modem.followProgress(stream, (error, lines) => (error ? reject(error) : resolve(lines)));
  });
server.listen("socket", async () => {
  try {
    const lines = await wait(await docker.buildImage({ context: ".", src: ["Dockerfile"] }, { t: "image" }));
    console.log(`built ${lines.at(-1).error}`);
    const more = await wait(await docker.pull("image"));
    console.log(`pulled ${more.at(-1).error}`);
  } catch (error) {
    console.log(`failed ${error.message}`);
  }
  server.close();
});
END_OF_PROGRAM
printf 'FROM scratch\nRUN exit 3\n' >Dockerfile
timeout 60 node program.js >out
expect "build" "built the command returned a non-zero code: 3" "$(sed -n 1p out)"
expect "pull" "pulled the command returned a non-zero code: 3" "$(sed -n 2p out)"
