"""What a container with a network of its own needs to be told, and who can have one."""

import os
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.shim import user_network
from scrun.supervisor.shim.user_network import fit_files, way

SLIRP, BRIDGE = "10.0.2.3/32", "10.89.0.0/24"


def resolved(tmp_path: Path, text: str, *networks: str) -> str:
    """Return the resolv.conf that a container gets."""
    submitted, place = tmp_path / "submitted", tmp_path / "place"
    submitted.write_text(text)
    place.mkdir()
    config = {"mounts": [{"destination": "/etc/resolv.conf", "source": str(submitted)}]}
    fit_files(config, str(place), {}, networks)
    return Path(config["mounts"][0]["source"]).read_text()


@pytest.mark.parametrize(
    ("networks", "left"),
    [
        ((SLIRP,), ["10.89.0.1", "10.1.1.1"]),
        ((BRIDGE,), ["10.0.2.3", "10.1.1.1"]),
        ((SLIRP, BRIDGE), ["10.1.1.1"]),
        (("10.0.0.0/8",), []),
        ((), ["10.0.2.3", "10.89.0.1", "10.1.1.1"]),
    ],
)
def test_name_servers_that_it_does_not_reach(
    networks: tuple[str, ...],
    left: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = tmp_path / "the node's"
    nodes.write_text("nameserver 192.0.2.53\nsearch site\n")
    servers = ("10.0.2.3", "10.89.0.1", "10.1.1.1", "fd00::1" * bool(left))
    text = "search dns.podman\n" + "".join(f"nameserver {one}\n" for one in servers if one)
    text_of = user_network._text_of
    monkeypatch.setattr(
        user_network,
        "_text_of",
        lambda path: text_of(str(nodes) if path == "/etc/resolv.conf" else path),
    )
    found = [line.split()[1] for line in resolved(tmp_path, text, *networks).splitlines()]
    assert found == ["dns.podman", *(left or ["192.0.2.53", "site"]), *["fd00::1"] * bool(left)]


def test_a_resolv_conf_that_is_not_there(tmp_path: Path) -> None:
    config = {"mounts": [{"destination": "/etc/resolv.conf", "source": str(tmp_path / "none")}]}
    before = str(config)
    fit_files(config, str(tmp_path), {}, [SLIRP])
    assert str(config) == before


def maps(*users: int) -> dict[str, Any]:
    lines = [{"containerID": user, "hostID": 1000 + user, "size": 1} for user in users]
    return {"uidMappings": lines, "gidMappings": lines}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"site": {}}, "the site's oci.conf makes it"),
        ({"maps": maps(1, 2)}, "its users cannot have one"),
        ({"maps": None}, "its users cannot have one"),
        ({"config": {"linux": {}}}, "its users cannot have one"),
    ],
)
def test_who_has_the_node_s_network(
    call: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert way(call) == ("", why)


def test_root_with_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert way({"maps": maps(0)}) == ("", "its users cannot have one")
