"""dockerode, the client that programs for Node.js have: the streams of an upgraded connection."""

import json
import re

import pytest

from tests.harness.engine_api import Api
from tests.harness.packages import clients, path_of_clients
from tests.harness.program import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.covers("promise clients")]

SCRIPT = """
const {PassThrough, Writable} = require("stream");
const Docker = require("dockerode");
const docker = new Docker({socketPath: process.argv[1]});
const server = "trap 'exit 5' TERM; echo job=$SLURM_JOB_ID; while :; do sleep 0.1; done";
const host = {NetworkMode: "host"};
const end = (stream) => new Promise((ended) => {
    stream.on("end", ended); stream.on("close", ended); });

function kept(stream) {
    const parts = {out: "", err: ""};
    const into = (name) => new Writable({
        write(chunk, _, next) { parts[name] += chunk; next(); } });
    docker.modem.demuxStream(stream, into("out"), into("err"));
    return parts;
}

async function attached() {
    const container = await docker.createContainer({
        Image: "busybox", Cmd: ["sh", "-c", "sort; echo e >&2; exit 3"], HostConfig: host,
        OpenStdin: true, StdinOnce: true });
    const stream = await container.attach({
        stream: true, stdin: true, stdout: true, stderr: true, hijack: true });
    const said = kept(stream);
    await container.start();
    const ending = end(stream);
    stream.end("b\\na\\n");
    await ending;
    const status = (await container.wait()).StatusCode;
    await container.remove();
    return [status, said.out, said.err];
}

async function executed(container, options, input) {
    const exec = await container.exec({AttachStdout: true, AttachStderr: true, ...options});
    const stream = await exec.start({hijack: true, stdin: options.AttachStdin || false});
    const said = kept(stream);
    const ending = end(stream);
    if (input) stream.end(input); else stream.resume();
    await ending;
    while ((await exec.inspect()).Running) await new Promise((go) => setTimeout(go, 50));
    return [(await exec.inspect()).ExitCode, said.out, said.err];
}

async function main() {
    const found = {ping: String(await docker.ping()), attached: await attached()};
    const container = await docker.createContainer({
        Image: "busybox", Cmd: ["sh", "-c", server],
        HostConfig: host, Labels: {of: "dockerode"} });
    await container.start();
    found.state = (await container.inspect()).State.Status;
    const filters = {label: ["of=dockerode"]};
    found.listed = (await docker.listContainers({filters})).map((one) => one.Id === container.id);
    found.exec = await executed(container, {Cmd: ["sh", "-c", "echo o; echo e >&2; exit 4"]});
    found.sorted = await executed(container, {Cmd: ["sort"], AttachStdin: true}, "b\\na\\n");
    found.archived = await new Promise(async (ended) => {
        let size = 0;
        const stream = await container.getArchive({path: "/etc/group"});
        stream.on("data", (chunk) => { size += chunk.length; });
        stream.on("end", () => ended(size > 0 && size % 512 === 0));
    });
    await container.stop({t: 10});
    found.status = (await container.wait()).StatusCode;
    found.logs = String(await container.logs({stdout: true, stderr: true})).slice(8);
    await container.remove();
    try {
        await container.inspect();
    } catch (error) {
        found.gone = error.statusCode;
    }
    try {
        await docker.createContainer({Image: "nope:nope", Cmd: ["true"]});
    } catch (error) {
        found.nope = error.statusCode;
    }
    console.log(JSON.stringify(found));
}
main().catch((error) => { console.error(error); process.exit(1); });
"""


def test_what_it_does(api: Api) -> None:
    """Input that is half-closed, output apart by stream, exec, an archive, errors by number."""
    user = api.engine.site.user
    environment = {
        **user.environment,
        "PATH": path_of_clients(),
        "NODE_PATH": f"{clients()}/lib/node_modules",
    }
    command = [*user.prefix, "/usr/bin/env", "node", "-e", SCRIPT, str(api.socket)]
    done = run_program(command, env=environment, cwd="/", timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if api.is_podman:  # which takes the request's body for input, by crun too
        found["attached"][1] = re.sub(r"\{.*\}", "", found["attached"][1])
    job = found.pop("logs").strip().removeprefix("job=")
    assert job.isdigit() is api.on_slurm
    assert found == {
        "ping": "OK",
        "attached": [3, "a\nb\n", "e\n"],
        "state": "running",
        "listed": [True],
        "exec": [4, "o\n", "e\n"],
        "sorted": [0, "a\nb\n", ""],
        "archived": True,
        "status": 5,
        "gone": 404,
        "nope": 404,
    }
