"""Seccomp filters that crun has compiled are used again, and runc has its own way."""

import os
from typing import Any

from tests.harness.bundle import make_config, map_user
from tests.harness.shim import Shim

_ALLOWS = {"defaultAction": "SCMP_ACT_ALLOW"}
_FORBIDS = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["sethostname"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
}
_TRY = ("sh", "-c", "hostname other 2>/dev/null")


def _runs(shim: Shim, name: str, rules: object, **fields: str) -> tuple[bool, dict[str, Any]]:
    """Return whether a container with those rules may change its host name, and the reply."""
    config = make_config(_TRY, str(shim.rootfs))
    if shim.user.uid:
        map_user(config, shim.user)
    config["linux"]["seccomp"] = rules
    capabilities = config["process"]["capabilities"] = {}
    for kind in ("bounding", "effective", "permitted"):
        capabilities[kind] = ["CAP_SYS_ADMIN"]
    reply = shim.call("create", id=name, name=name, config=config, streams={}, **fields)
    assert "pid" in reply, reply
    assert shim.call("start", id=name) == {}
    return shim.ended(name) == 0, reply


def test_a_filter_is_used_again(shim: Shim) -> None:
    is_crun = os.path.basename(shim.hello["runtime"]) == "crun"
    may, reply = _runs(shim, "a", _FORBIDS)
    assert not may
    assert "filter" not in reply  # nobody wants to know
    may, reply = _runs(shim, "b", _FORBIDS, filter="")
    assert not may
    forbids = reply["filter"]
    assert bool(forbids) is is_crun
    may, reply = _runs(shim, "c", _ALLOWS, filter="")
    assert may
    if not is_crun:
        return
    assert reply["filter"] not in ("", forbids)
    may, reply = _runs(shim, "d", _FORBIDS, filter=forbids)
    assert not may
    assert "filter" not in reply
    may, _ = _runs(shim, "e", _ALLOWS, filter=forbids)  # else it would not be used at all
    assert not may
