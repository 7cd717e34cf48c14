"""What becomes of a bundle that a site's script has staged."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.model.record import Moved
from scrun.oci.config import load_bundle
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging.scripted import _describe
from tests.harness.bundle import make_config, make_rootfs, write_bundle

NODES = Target(
    elsewhere=True, uid=1000, gid=1000, rootless=True, link_rootfs=False, host_only=(), slurm=""
)
OF_AN_IMAGE = {
    "run.oci.hooks.stdout": "/tmp/of-an-image",
    "krun.cpus": "9000",
    "run.oci.keep_original_groups": "1",
    "org.example": "x",
}
PASS = {"run.oci.keep_original_groups": "1", "org.example": "x"}


def described(
    base: Path, annotations: dict[str, str] | None = None, target: Target = NODES
) -> tuple[Staged, dict[str, Any]]:
    """Have a script leave a bundle with these annotations, or with those of the image.

    Returns:
        What is made of it, and the config.json that the runtime gets.
    """
    make_rootfs(base / "files")
    config = make_config(["true"], str(base / "files"))
    config["annotations"] = OF_AN_IMAGE
    submitted = write_bundle(base / "submitted", config)
    left = submitted
    if annotations is not None:
        left = write_bundle(base / "left", {**config, "annotations": annotations})
    bundle = load_bundle(str(submitted))
    moved = Moved(
        script="/site/scrun.lua", bundle=str(left), original_bundle=bundle.path,
        root=bundle.rootfs, original_root=bundle.rootfs, spool="", config_file="", user=0, group=0,
    )  # fmt: skip
    staged = _describe(moved, bundle, target, str(base / "shadow"), None)
    found = json.loads(Path(staged.bundle, "config.json").read_text())
    return staged, found


@pytest.mark.covers("security leave an image's annotations in config.json")
def test_an_images_orders_do_not_pass(tmp_path: Path) -> None:
    """Those that the script has left as they were; the bundle that it left stays as it is."""
    staged, config = described(tmp_path)
    assert config["annotations"] == PASS
    assert staged.missed == ("--annotation run.oci.hooks.stdout", "--annotation krun.cpus")
    assert len(staged.notes) == 2
    assert staged.bundle == str(tmp_path / "shadow")
    assert config["root"]["path"] == str(tmp_path / "files")
    submitted = json.loads((tmp_path / "submitted" / "config.json").read_text())
    assert submitted["annotations"] == OF_AN_IMAGE


def test_what_a_script_writes_passes(tmp_path: Path) -> None:
    """It is the site's, which could as well run what it wants: added, or another value."""
    own = {**PASS, "krun.cpus": "2", "run.oci.handler": "krun"}
    staged, config = described(tmp_path, own)
    assert config["annotations"] == own
    assert (staged.missed, staged.notes) == ((), ())
    assert staged.bundle == str(tmp_path / "left")


def test_here_the_runtime_gets_what_it_got_without_us(tmp_path: Path) -> None:
    here = msgspec.structs.replace(NODES, elsewhere=False)
    staged, config = described(tmp_path, target=here)
    assert config["annotations"] == OF_AN_IMAGE
    assert staged.bundle == str(tmp_path / "submitted")


def test_where_slurm_knows_one_name_only(tmp_path: Path) -> None:
    staged, config = described(tmp_path, PASS, msgspec.structs.replace(NODES, link_rootfs=True))
    assert staged.bundle == str(tmp_path / "shadow")
    assert (tmp_path / "shadow" / "rootfs").resolve() == tmp_path / "files"
    assert config["annotations"] == PASS
