import pytest

from scrun.supervisor.programs.doctor.job_trial import judge_images, read

COPY = "n1: no overlay ({}), so each container gets a copy of its image"


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
            "ok",
            "n1: overlays by fuse-overlayfs, copies are directories: squashfuse, or /dev/fuse for "
            "users, is missing",
        ),
        (["refused mount: denied", "squashfs squashfuse"], "warn", COPY.format("mount: denied")),
        ([], "warn", COPY.format("it cannot be tried there")),
    ],
)
def test_what_a_node_says(lines: list[str], status: str, finding: str) -> None:
    found = judge_images(read(["node n1", *lines]))
    assert (found.status, found.text) == (status, finding)
    assert ("fuse-overlayfs" in (found.remedy or "")) is (status == "warn")
