"""What is missing to run a container, and the command that installs it."""

from collections.abc import Callable

import pytest

from scrun.install import needs

USUAL = ["podman", "newuidmap", "crun", "dockerd", "docker", "apt-get"]


def having(*programs: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in programs else None


@pytest.mark.parametrize(
    ("engines", "there", "packages"),
    [
        (["podman"], USUAL, ""),
        (["podman"], ["apt-get"], "podman crun uidmap"),
        (["podman"], ["apt-get", "podman", "runc"], "uidmap"),
        (["docker"], ["apt-get"], "docker.io crun uidmap"),
        (["docker"], ["apt-get", "dockerd", "runc", "newuidmap"], "docker-cli"),
        (["podman", "docker"], ["apt-get", "podman", "newuidmap"], "docker.io crun"),
        ([], ["apt-get"], "crun"),
        ([], USUAL, ""),
    ],
)
def test_one_command_installs_it(engines: list[str], there: list[str], packages: str) -> None:
    which = having(*there)
    lacking = needs.missing(engines, which, here=True, slurm=False, rootless=True)
    assert " ".join(need.package for need in lacking) == packages
    if packages:
        assert needs.remedy(lacking, which, root=True) == f"apt-get install {packages}"
        assert needs.remedy(lacking, which, root=False) == f"as root: apt-get install {packages}"


def test_what_only_some_need() -> None:
    nothing = having("apt-get")
    root = needs.missing(["podman"], nothing, here=False, slurm=True, rootless=False)
    assert [need.package for need in root] == ["podman", "slurm-client"]


def test_elsewhere_it_is_named() -> None:
    lacking = needs.missing(["podman"], having(), here=True, slurm=False, rootless=False)
    assert needs.remedy(lacking, having(), root=True) == (
        "install podman, an OCI runtime (crun or runc) with this system's package manager"
    )


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        (None, False),
        ("passwd: files sss\n", False),
        ("subid: files\n", False),
        ("passwd: files\nsubid: sss\n", True),
        ("subid:\tfiles sss # both\n", True),
    ],
)
def test_ids_from_elsewhere(text: str | None, elsewhere: bool) -> None:
    assert needs.ids_come_from_elsewhere(text) is elsewhere
