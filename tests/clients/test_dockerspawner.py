"""JupyterHub with DockerSpawner: somebody logs in, and works in a server that is a job."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from tests.harness.engine_api import Api
from tests.harness.networks import free_port
from tests.harness.packages import clients, path_of_clients
from tests.harness.podman import given
from tests.harness.program import run_program
from tests.harness.wait import wait_until, wait_while

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.covers("promise clients"),
    pytest.mark.parametrize("_api", ["podman-slurm", "podman-crun"], indirect=True),
]

CONFIG = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://0.0.0.0:{hub}"
c.JupyterHub.hub_connect_url = "http://{address}:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.auth_token = "{token}"
c.JupyterHub.cleanup_servers = c.JupyterHub.cleanup_proxy = False
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "word"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
c.DockerSpawner.image = "localhost/busybox"
c.DockerSpawner.pull_policy = "never"
c.DockerSpawner.remove = True
c.DockerSpawner.cmd = ["{bin}/python3", "{bin}/jupyterhub-singleuser", "--allow-root"]
c.DockerSpawner.notebook_dir = "/tmp"
c.DockerSpawner.environment = {{
    "HOME": "/tmp", "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"}}
c.DockerSpawner.read_only_volumes = {{
    path: path for path in ("/usr", "/lib", "/lib64", "{venv}")}}
c.Spawner.start_timeout = c.Spawner.http_timeout = 90
"""

USER_S = """
import json, re, sys, time, uuid
import requests, websocket

url, name, code = sys.argv[1:]
session = requests.Session()

def xsrf(page):
    return re.search('name="_xsrf" value="([^"]+)"', page.text)[1]

login = session.get(f"{url}/hub/login")
home = session.post(f"{url}/hub/login", data={
    "username": name, "password": "word", "_xsrf": xsrf(login)})
assert home.ok, home.text
home = session.get(f"{url}/hub/spawn/{name}")
deadline = time.monotonic() + 100
while not session.get(f"{url}/user/{name}/api/status").ok:
    assert time.monotonic() < deadline, "no server"
    time.sleep(0.5)
    session.get(f"{url}/user/{name}/files/none")  # leads to the hub and back, for a cookie

def token(path):
    return next(one.value for one in session.cookies if one.name == "_xsrf" and one.path == path)

if code == "END":
    session.get(f"{url}/hub/home")
    headers = {"X-XSRFToken": token("/hub/"), "Referer": f"{url}/hub/home"}
    ended = session.delete(f"{url}/hub/api/users/{name}/server", headers=headers)
    assert ended.ok, ended.text
    sys.exit()
api = f"{url}/user/{name}/api/kernels"
kernels = session.get(api).json()
if not kernels:
    headers = {"X-XSRFToken": token(f"/user/{name}/")}
    made = session.post(api, json={}, headers=headers)
    assert made.ok, made.text
    kernels = [made.json()]
channels = f"{api}/{kernels[0]['id']}/channels".replace("http:", "ws:")
cookies = "; ".join(f"{one.name}={one.value}" for one in session.cookies)
line = websocket.create_connection(channels, cookie=cookies, timeout=60, origin=url)
asked = uuid.uuid4().hex
line.send(json.dumps({
    "channel": "shell", "parent_header": {}, "metadata": {}, "buffers": [],
    "header": {"msg_id": asked, "msg_type": "execute_request", "username": "", "session": asked,
               "version": "5.3", "date": "2000-01-01T00:00:00Z"},
    "content": {"code": code, "silent": False, "store_history": False, "user_expressions": {},
                "allow_stdin": False}}))
said = ""
while True:
    told = json.loads(line.recv())
    if told["parent_header"].get("msg_id") != asked:
        continue
    if told["msg_type"] == "stream":
        said += told["content"]["text"]
    if told["msg_type"] == "error":
        said += repr(told["content"])
    if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
        break
line.close()
print(said, end="")
"""


class Hub:
    """A hub of the engine's user."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.place = api.engine.site.base / "hub"
        self.place.mkdir()
        self.port = free_port()
        text = CONFIG.format(
            port=self.port, hub=free_port(), api=free_port(), token="0" * 32,
            address=_address(), venv=clients(), bin=clients() / "bin",
        )  # fmt: skip
        self._config = given(api.engine, "hub/config.py", text)
        api.engine.site.user.give(self.place)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it; at the end its containers and its proxy stay."""
        user = self.api.engine.site.user
        environment = {
            **user.environment, "PATH": path_of_clients(), "DOCKER_HOST": self.api.url,
            "HOME": str(self.place), "JUPYTERHUB_CRYPT_KEY": "0" * 64,
        }  # fmt: skip
        command = [*user.prefix, f"{clients()}/bin/jupyterhub", "--config", str(self._config)]
        with open(self.place / "log", "ab") as log:
            hub = subprocess.Popen(
                command, env=environment, cwd=self.place, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            wait_until("the hub", lambda: hub.poll() is not None or self._answers(), 60)
            yield
        except BaseException:
            print((self.place / "log").read_text())
            raise
        finally:
            hub.terminate()
            hub.wait(60)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/hub/api/"):
            return True
        return False

    def cell(self, code: str) -> str:
        """Log in, and run code in a kernel of one's server, which is begun if necessary."""
        words = (f"http://127.0.0.1:{self.port}", "ann", code)
        done = run_program(
            [f"{clients()}/bin/python3", "-c", USER_S, *words], cwd="/", timeout=200
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> None:
        """End the proxy."""
        pid = self.place / "jupyterhub-proxy.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGTERM)


def _address() -> str:
    """This machine's, by which jobs on other nodes reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address


def test_a_cell_and_a_restart_of_the_hub(api: Api) -> None:
    """The server and what its kernel knows are there after the restart; then the server ends."""
    hub = Hub(api)
    try:
        with hub.running():
            said = hub.cell("import os; kept = 6; print('job', os.environ.get('SLURM_JOB_ID'))")
            assert (said != "job None\n") is api.on_slurm
            assert said.startswith("job ")
            [container] = api.get("/v1.40/containers/json")
            assert container["Names"] == ["/jupyter-ann"]
        with hub.running():
            assert hub.cell("print(kept * 7)") == "42\n"
            [same] = api.get("/v1.40/containers/json")
            assert same["Id"] == container["Id"]
            hub.cell("END")
            wait_while("its container", lambda: api.get("/v1.40/containers/json?all=1"), 60)
    finally:
        hub.end()
