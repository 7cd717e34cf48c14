import os

import msgspec
import pytest

from scrun.oci.config import Bundle, parse
from scrun.settings.file.load import Settings, Slurm
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.keeping import recalled, remembered
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.log.journal import Shown

_CONFIG = (
    b'{"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "annotations": {"a": "\xc3\xa4"},'
    b'"process": {"args": ["true"], "cwd": "/", "x": [18446744073709551616, 0.5, true]}}'
)


def request() -> CreateRequest:
    return CreateRequest(
        id="c",
        bundle="/b\udcff",
        config_file=None,
        directory="/",
        pid_file="/pid",
        child_env=ChildEnv({"A\udc80": "\udcfe", "B": ""}, 0o27, limits=(("core", -1),)),
        settings=Settings(slurm=Slurm(defaults={"partition": "long"}), plugins={"p": {"x": 1}}),
        shown=Shown(stderr="info"),
        console=None,
        keeps_output=True,
    )


def test_all_is_recalled_as_it_was() -> None:
    """Also what is not UTF-8, and integers of any size; without a look at a file."""
    raw, config = parse(_CONFIG)
    bundle = Bundle("/b\udcff", "/b\udcff/config.json", config, raw, "/b\udcff/rootfs")
    with remembered(request(), bundle) as memory:
        other = os.dup(memory)
    try:
        assert recalled(other) == (request(), bundle)
    finally:
        os.close(other)


def test_it_takes_one_page_of_memory() -> None:
    """With an engine's many variables, and podman's rules for seccomp."""
    names = [f"name_{number}" for number in range(400)]
    raw, config = parse(_CONFIG)
    raw["linux"] = {"seccomp": {"syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}]}}
    environment = {f"VARIABLE_{number}": "/usr/local/bin:/usr/bin" for number in range(60)}
    create_request = msgspec.structs.replace(request(), child_env=ChildEnv(environment))
    bundle = Bundle("/b", "/b/config.json", config, raw, "/b/rootfs")
    with remembered(create_request, bundle) as memory:
        assert os.fstat(memory).st_size <= 4096


@pytest.mark.parametrize("content", [b"", b"create\0x", b"x\x9cK\x04\x00\x00b\x00b"])
def test_something_else_is_refused(content: bytes) -> None:
    memory = os.memfd_create("other")
    try:
        os.write(memory, content)
        with pytest.raises(ValueError, match="this is not a request"):
            recalled(memory)
    finally:
        os.close(memory)
