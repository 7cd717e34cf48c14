#!/usr/bin/env bash
# podman-py is called as docker-py is: containers.create(IMAGE, "echo a b", nano_cpus=500000000).
#
# One would guess: half a processor for `echo` with two words, as with docker-py. What podman-py does not
# support it refuses, with a TypeError, and its documentation lists nano_cpus.
# What happens: nano_cpus is taken and dropped, so the container may use every processor; and the string
# is not split into words, so podman looks for a program "echo a b". (cpu_quota works.)
# Seen with podman-py 5.8.0. What it would send is caught by a server of the script.
#
#   command ["echo a b"], and no word of processors
. "$(dirname "$0")/common.bash" || exit 2
pips podman==5.8.0
cat >program.py <<'END'
import contextlib
import http.server
import json
import os
import socketserver
import threading

import podman

asked = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_GET()

    def do_GET(self):
        body = b'{"Id": "0"}'
        self.send_response(201 if self.command == "POST" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


with socketserver.UnixStreamServer("socket", Handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = podman.PodmanClient(base_url=f"unix://{os.getcwd()}/socket")
    for limit in {"nano_cpus": 500000000}, {"cpu_quota": 50000}:
        with contextlib.suppress(KeyError):  # the answers are not full ones
            client.containers.create("image", "echo a b", **limit)
    server.shutdown()
for request in asked:
    print(request["command"], request.get("resource_limits", {}).get("cpu"))
END
python program.py >seen
expect "sent for nano_cpus" "['echo a b'] None" "$(sed -n 1p seen)"
expect "sent for cpu_quota" "['echo a b'] {'quota': 50000}" "$(sed -n 2p seen)"
