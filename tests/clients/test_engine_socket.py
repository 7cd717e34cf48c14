"""The engine's own socket in a container: what makes containers there makes them beside it."""

import json
import socket
from pathlib import Path

import pytest

from tests.harness import cluster, users
from tests.harness.adoption import kill_all_supervisors
from tests.harness.engine_api import Api
from tests.harness.podman import Podman, podman_of
from tests.harness.wait import wait_until

on_slurm = pytest.mark.parametrize("_api", ["podman-slurm", "docker-slurm"], indirect=True)
pytestmark = pytest.mark.covers("promise clients")

NODE_S = [
    word for path in ("/usr", "/lib", "/lib64") for word in ("--volume", f"{path}:{path}:ro")
]
"""Options by which a container has the node's Python."""

ASK = """
import http.client, json, socket, sys
def ask(method, path, body=None):
    connection = http.client.HTTPConnection("engine")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect("/var/run/docker.sock")
    connection.request(method, path, body, {"Content-Type": "application/json"})
    return connection.getresponse().read().decode().strip()
"""


def words(path: Path, *options: str) -> list[str]:
    """Arguments of `run` for a container that mounts a socket; the program follows."""
    mount = ("--volume", f"{path}:/var/run/docker.sock")
    return ["run", "--network", "none", *NODE_S, *mount, *options, "busybox"]


def python(script: str) -> tuple[str, ...]:
    return ("/usr/bin/python3", "-c", ASK + script)


@on_slurm
def test_it_leads_to_the_engine(api: Api) -> None:
    script = python("print(ask('GET', '/_ping'), ask('GET', '/v1.40/containers/json'))")
    pong, containers = api.engine.must(*words(api.socket, "--rm"), *script).split(" ", 1)
    assert pong == "OK"
    [itself] = json.loads(containers)
    assert "python3" in itself["Command"]


@on_slurm
def test_a_container_of_a_container_is_a_job(api: Api) -> None:
    """It is made, started, awaited and removed by the API."""
    script = python("""
body = json.dumps({"Image": "busybox", "Cmd": ["sh", "-c", "echo job=$SLURM_JOB_ID; exit 7"],
                   "HostConfig": {"NetworkMode": "none"}})
name = json.loads(ask("POST", "/v1.40/containers/create?name=inner", body))["Id"]
ask("POST", f"/v1.40/containers/{name}/start")
status = json.loads(ask("POST", f"/v1.40/containers/{name}/wait"))["StatusCode"]
logs = ask("GET", f"/v1.40/containers/{name}/logs?stdout=1")
ask("DELETE", f"/v1.40/containers/{name}")
import os
print(status, logs[-30:], "outer", os.environ["SLURM_JOB_ID"])
""")
    said = api.engine.must(*words(api.socket, "--rm"), *script)
    status, rest = said.split(" ", 1)
    inner, outer = (int(word) for word in _numbers(rest))
    assert status == "7"
    assert inner != outer


def _numbers(said: str) -> tuple[str, str]:
    _, _, rest = said.partition("job=")
    inner, _, outer = rest.split()
    return inner, outer


@pytest.mark.parametrize("_api", ["podman-slurm"], indirect=True)
def test_its_supervisor_dies(api: Api) -> None:
    """Its successor carries what comes next."""
    script = python("""
import sys
import os, time
print(ask("GET", "/_ping"), flush=True)
while not os.path.exists("/go"):
    time.sleep(0.1)
print(ask("GET", "/_ping"), flush=True)
""")
    container = api.engine.must(*words(api.socket, "--detach"), *script).strip()
    wait_until("an answer", lambda: api.engine.must("logs", container) == "OK\n")
    kill_all_supervisors(api.engine.site)
    api.engine.must("exec", container, "touch", "/go")
    assert api.engine.must("wait", container).strip() == "0"
    assert api.engine.must("logs", container).split() == ["OK", "OK"]
    api.engine.must("rm", container)


@pytest.mark.parametrize("settings", ["", '[staging]\nsockets = "none"\n'])
def test_it_is_not_mounted(settings: str) -> None:
    """Another user's; or the user's own, if a setting says so."""
    with cluster.without_oci_conf(), podman_of(users.ordinary(), settings=settings) as podman:
        path = podman.site.base / "x" / "docker.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o666)
            if settings:
                podman.site.user.give(path)
            listener.listen()
            assert _without(podman, path) == 1


def _without(podman: Podman, path: Path) -> int:
    """Hold that a container starts without the socket, and says so; return its status."""
    done = podman.run(*words(path, "--rm"), "test", "-S", "/var/run/docker.sock")
    assert done.stderr == (
        f"scrun: no effect in a job: the mount /var/run/docker.sock ({path} is a socket here)\n"
    )
    return done.returncode
