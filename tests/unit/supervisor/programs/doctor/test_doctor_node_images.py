import pytest

from scrun.supervisor.programs.doctor.job_trial import judge_images, read
from scrun.supervisor.programs.doctor.machine import judge_images_here

COPY = "n1: no overlay ({}), so each container gets a copy of its image"
NO_FUSE = (
    "n1: overlays by fuse-overlayfs, no squashfs images (squashfuse, or /dev/fuse for users, is "
    "missing), so each container whose image it does not see gets a copy of that"
)


@pytest.mark.parametrize(
    ("lines", "status", "finding"),
    [
        (
            ["overlay the kernel", "squashfs squashfuse_ll"],
            "ok",
            "n1: overlays by the kernel, squashfs images by squashfuse_ll",
        ),
        (
            ["a site's words", "overlay fuse-overlayfs", "overlay the kernel"],
            "warn",
            NO_FUSE,
        ),
        (["refused mount: denied", "squashfs squashfuse"], "warn", COPY.format("mount: denied")),
        ([], "warn", COPY.format("it cannot be tried there")),
    ],
)
def test_what_a_node_says(lines: list[str], status: str, finding: str) -> None:
    found = judge_images(read(["node n1", *lines]))
    assert (found.status, found.text) == (status, finding)
    lacks = "squashfuse" if found.text == NO_FUSE else "fuse-overlayfs"
    assert (lacks in (found.remedy or "")) is (status == "warn")


def test_what_keeps_layers_from_the_store() -> None:
    fine = judge_images_here("/s: not used yet", "", "")
    assert (fine.status, fine.remedy) == ("ok", "")
    found = judge_images_here("/s: not used yet", "only a shim mounts images", "set `launch`")
    assert found.status == "warn"
    assert "gets a copy of all: only a shim mounts images" in found.text
    assert found.remedy == (
        "set `launch`, or have engines keep their layers where the nodes see them"
    )
