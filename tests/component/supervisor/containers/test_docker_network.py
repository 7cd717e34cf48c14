"""dockerd's hook for the network of a container, called with its anchor."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from scrun.core.errors import EngineError
from scrun.oci.config import Bundle, Hook
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv
from scrun.supervisor.containers.docker_network import hook_of, made_network
from tests.component.supervisor.containers.test_engine_network import network as network

ENV = ChildEnv({"PATH": SYSTEM_PATH})


def bundle_with(*hooks: Hook) -> Bundle:
    words = SimpleNamespace(prestart=[*hooks])
    config = SimpleNamespace(hooks=words, oci_version="1.0.2")
    return cast(Bundle, SimpleNamespace(config=config, path="/b"))


def program(tmp_path: Path, script: str) -> Hook:
    file = tmp_path / "program"
    file.write_text(f"#!{sys.executable}\n{script}\n")
    file.chmod(0o755)
    return Hook(path=str(file), args=["libnetwork-setkey", "c1", "key"], timeout=2)


def test_which_hook() -> None:
    """No other hook of a container in a job is called: it belongs to this machine."""
    ours = Hook(path="/proc/1/exe", args=["libnetwork-setkey", "a", "b"])
    other = Hook(path="/bin/other", args=["other", "libnetwork-setkey"])
    assert hook_of(bundle_with(other, ours)) == ours
    assert hook_of(bundle_with(other, Hook(path="/libnetwork-setkey"))) is None


async def test_it_is_told_of_the_anchor(network: str, tmp_path: Path) -> None:
    pid = int(network.split("/")[2])
    hook = program(tmp_path, f"import sys; open('{tmp_path}/told', 'w').write(sys.stdin.read())")
    assert await made_network("c1", bundle_with(hook), hook, pid, ENV) == ""
    state = json.loads((tmp_path / "told").read_text())
    assert state == {
        "ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": pid, "bundle": "/b",
    }  # fmt: skip


async def test_a_network_with_an_interface(network: str, tmp_path: Path) -> None:
    pid = int(network.split("/")[2])
    words = ["nsenter", f"--net={network}", "ip", "link", "add", "eth0", "type", "veth"]
    hook = program(tmp_path, f"import subprocess; subprocess.run({words}, check=True)")
    assert await made_network("c1", bundle_with(hook), hook, pid, ENV) == network


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; sys.exit('no such container')", "no such container"),
        ("import os; os._exit(3)", "it ended with 3"),
        ("import time; time.sleep(60)", "did not end"),
    ],
)
async def test_a_hook_that_fails(script: str, why: str, tmp_path: Path) -> None:
    hook = program(tmp_path, script)
    with pytest.raises(EngineError, match=f"^docker's network: libnetwork-setkey.*{why}"):
        await made_network("c1", bundle_with(hook), hook, os.getpid(), ENV)


async def test_a_hook_that_is_gone(tmp_path: Path) -> None:
    hook = Hook(path=str(tmp_path / "none"), args=["libnetwork-setkey"])
    with pytest.raises(EngineError, match="No such file"):
        await made_network("c1", bundle_with(hook), hook, os.getpid(), ENV)
