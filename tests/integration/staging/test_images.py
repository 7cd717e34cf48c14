"""scrun image: what is in the store, and what becomes of it."""

import json
import os
import shutil

import pytest

from tests.harness.image import image_archive
from tests.harness.registry import SAID, Registry, box, images, run

pytestmark = pytest.mark.covers("scrun image")

TWO = pytest.mark.parametrize("registry", ["local-user", "slurm-user"], indirect=True)
HERE = pytest.mark.parametrize("registry", ["local-user"], indirect=True)


def image(registry: Registry, *words: str) -> str:
    done = registry.site.run("image", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@HERE
def test_pull_list_and_remove(registry: Registry) -> None:
    assert image(registry, "list", "-q") == ""
    [key] = image(registry, "pull", box(registry)).split()
    assert key == "sha256-" + registry.digest("box:1").removeprefix("sha256:")
    assert run(registry, box(registry), says="nothing") == SAID
    [row] = json.loads(image(registry, "list", "--format", "json"))
    assert (row["key"], row["source"], row["containers"]) == (key, box(registry), [])
    assert row["digest"] == registry.digest("box:1")
    assert row["size"] > 500_000
    assert os.path.isdir(row["path"] + "/rootfs/bin")
    head, line = image(registry, "list").splitlines()
    assert head.split() == ["KEY", "SIZE", "USED", "CONTAINERS", "SOURCE"]
    assert line.split()[0] == key[:19]
    assert line.split()[3:] == ["0", box(registry)]
    assert image(registry, "remove", key[:19]) == f"{key}\n"
    assert images(registry) == []
    assert os.listdir(registry.store / "tags") == []


@TWO
def test_what_is_used_stays(registry: Registry) -> None:
    site = registry.site
    run(registry, "--detach", "--name", "one", box(registry), "sleep", "60")
    [row] = json.loads(image(registry, "list", "--format", "json"))
    assert row["containers"] == ["one"]
    told = site.fails("image", "remove", box(registry))
    assert told == f"scrun: {box(registry)} is used by one: delete that first\n"
    assert image(registry, "prune") == "removed 0 images and layers, 0B\n"
    assert images(registry) == [row["key"]]
    site.must("delete", "--force", "one")
    assert image(registry, "prune", "--quiet") == f"{row['key']}\n"
    assert images(registry) == []


@HERE
def test_prune_by_age(registry: Registry) -> None:
    [key] = image(registry, "pull", box(registry)).split()
    assert image(registry, "prune", "--unused-for", "1h", "-q") == ""
    os.utime(registry.store / key / "scrun-image.json", (1, 1))
    assert image(registry, "prune", "--unused-for", "1h", "-q") == f"{key}\n"
    assert "is not a duration" in registry.site.fails("image", "prune", "--unused-for", "soon")


@HERE
def test_import(registry: Registry) -> None:
    archive = image_archive(registry.site)
    assert image(registry, "import", f"docker-archive:{archive}", "work") == "name:work\n"
    run(registry, "name:work", "sh", "-c", "echo kept >/tmp/a")
    assert run(registry, "name:work", "cat", "/tmp/a") == "kept\n"
    told = registry.site.fails("image", "import", f"docker-archive:{archive}", "work")
    assert "name:work exists" in told
    image(registry, "prune")
    assert image(registry, "list", "-q") == "name:work\n"
    assert image(registry, "remove", "name:work") == "name:work\n"
    assert image(registry, "list", "-q") == ""


@HERE
def test_the_store_of_a_site_is_used(registry: Registry) -> None:
    """Images of `also` are not got again, and a small `size` lets others go."""
    site = registry.site
    image(registry, "pull", box(registry))
    also = site.base / "b" / "also"
    shutil.move(registry.store, also)
    settings = (site.base / "scrun.toml").read_text()
    with_also = site.base / "b" / "also.toml"
    with_also.write_text(settings.replace("[images]\n", f'[images]\nalso = ["{also}"]\n'))
    site.user.give(with_also)
    environment = {"SCRUN_CONFIG": str(with_also)}
    done = site.run("run", box(registry), environment=environment)
    assert (done.stdout, done.stderr) == (SAID, "")
    assert images(registry) == []
    small = site.base / "b" / "small.toml"
    small.write_text(settings.replace("[images]\n", "[images]\nsize = 1\n"))
    site.user.give(small)
    [first] = image(registry, "pull", str(site.rootfs)).split()
    done = site.run("image", "pull", box(registry), environment={"SCRUN_CONFIG": str(small)})
    assert done.returncode == 0, done.stderr
    assert first not in images(registry)


@HERE
def test_what_cannot_be_meant(registry: Registry) -> None:
    for line, told in (
        ("show", "unknown action 'show': use list, pull, import, remove, prune"),
        ("pull", "image pull needs an image"),
        ("remove sha256-12", "sha256-12: there is no such image here"),
        ("list x", "unexpected argument 'x'"),
        ("import x", "image import needs an image and a name"),
        ("import / a/b", "'a/b': is not a valid name in a store of images"),
        ("list --unused-for 1h", "image list: --unused-for is for prune"),
    ):
        assert told in registry.site.fails("image", *line.split())
