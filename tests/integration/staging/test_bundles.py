"""The containers guide: how bundles are made, and how containers are asked for.

Bundles run through scrun on this machine and on Slurm, and by Slurm's own `--container` where the
guide says so.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.docker import Docker
from tests.harness.image import image_archive
from tests.harness.nightly import nightly
from tests.harness.oci import Layout
from tests.harness.podman import Podman
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise the containers guide")

BOTH = pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
HERE = pytest.mark.parametrize("site", ["local-user"], indirect=True)
SLURM = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
MARK = "made by a test"
SHOW = ["/bin/sh", "-c", "cat /etc/mark"]


def call(site: Site, *command: str, status: int = 0, timeout: float = 60) -> str:
    """Run a command as the site's user, in the site's directory; return what it printed."""
    done = run_program(
        [*site.user.prefix, *command], env=site.environment, cwd=site.base / "b", timeout=timeout
    )
    assert done.returncode == status, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def set_program(bundle: Path, args: list[str], *, terminal: bool = False) -> None:
    """What people do with an editor."""
    path = bundle / "config.json"
    config = json.loads(path.read_text())
    config["process"]["args"] = args
    config["process"]["terminal"] = terminal
    path.write_text(json.dumps(config))


def mark(rootfs: Path) -> None:
    (rootfs / "etc").mkdir(exist_ok=True)
    (rootfs / "etc" / "mark").write_text(MARK)


@pytest.fixture
def bundle(site: Site) -> Path:
    """A bundle of `scrun spec --rootless` that shows its mark."""
    place = site.base / "b" / "made"
    place.mkdir()
    shutil.copytree(site.rootfs, place / "rootfs", symlinks=True)
    mark(place / "rootfs")
    site.user.give(place)
    call(site, *site.command, "spec", "--rootless", "--bundle", str(place))
    set_program(place, SHOW)
    return place


def by_slurm(site: Site, *command: str, expected: str = MARK) -> None:
    """Hold that a command of Slurm's own makes a container, where there is an oci.conf."""
    if cluster.has_oci_conf():
        assert call(site, *command) == expected


def runs(site: Site, bundle: Path, expected: str = MARK) -> None:
    """Hold that a bundle runs at once, and by Slurm's own srun too where there is Slurm."""
    assert site.must("run", "--bundle", str(bundle), "c1") == expected
    if site.engine == "slurm":
        by_slurm(site, "srun", "--container", str(bundle), *SHOW, expected=expected)


# Ways to make a root file system


@pytest.fixture
def repository(site: Site) -> Path:
    """A Debian repository of one package, which is a whole system, and debootstrap's script."""
    base = site.base / "b" / "debian"
    package = base / "package"
    for name in ("bin", "var/log", "DEBIAN", "etc"):
        (package / name).mkdir(parents=True)
    shutil.copy(site.rootfs / "bin" / "busybox", package / "bin")
    for applet in ("sh", "cat"):
        (package / "bin" / applet).symlink_to("busybox")
    mark(package)
    (package / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1.0\nArchitecture: all\nPriority: required\nSection: base\n"
        "Maintainer: Nobody <nobody@example.org>\nDescription: a tiny system\n"
    )
    archive = base / "pool" / "tiny_1.0_all.deb"
    archive.parent.mkdir()
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", package, archive],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    machine = run_program(["dpkg", "--print-architecture"], check=True).stdout.strip()
    index = base / "dists" / "tiny" / "main" / f"binary-{machine}" / "Packages"
    index.parent.mkdir(parents=True)
    content = archive.read_bytes()
    index.write_text(
        (package / "DEBIAN" / "control").read_text()
        + f"Filename: pool/{archive.name}\nSize: {len(content)}\n"
        + f"MD5sum: {hashlib.md5(content).hexdigest()}\n"
        + f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
    )
    listed = index.read_bytes()
    (base / "dists" / "tiny" / "Release").write_text(
        f"Suite: tiny\nCodename: tiny\nArchitectures: {machine}\nComponents: main\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\n"
        f"SHA256:\n {hashlib.sha256(listed).hexdigest()} {len(listed)} "
        f"main/binary-{machine}/Packages\n"
    )
    (base / "script").write_text(
        "mirror_style release\ndownload_style apt\nfinddebs_style from-indices\n"
        "variants - minbase\nwork_out_debs () { required=tiny; base=; }\n"
        "first_stage_install () { extract $required; }\nsecond_stage_install () { :; }\n"
    )
    return base


@pytest.mark.covers("guide Bundles: debootstrap")
@BOTH
def test_debootstrap(site: Site, repository: Path) -> None:
    """Bundles: debootstrap makes the root file system, of a repository on this machine."""
    made = site.base / "b" / "boot"
    made.mkdir()
    words = ["--no-check-gpg", "--variant=minbase", "tiny", str(made / "rootfs")]
    done = run_program(["debootstrap", *words, f"file://{repository}", repository / "script"])
    assert done.returncode == 0, done.stdout + done.stderr
    site.user.give(made)
    call(site, *site.command, "spec", "--rootless", "--bundle", str(made))
    set_program(made, SHOW)
    runs(site, made)


def unpack(archive: Path, rootfs: Path) -> None:
    """What the guide does with the output of `docker export`."""
    subprocess.run(["tar", "-C", rootfs, "-xf", archive], check=True, timeout=60)


@pytest.mark.covers("guide Bundles: docker create, docker export")
def test_podman_export(podman: Podman) -> None:
    """Bundles: what podman exports, without a runtime, becomes one."""
    site = podman.site
    podman.must("create", "--name", "export", "busybox", "true")
    made = site.base / "b" / "exported"
    (made / "rootfs").mkdir(parents=True)
    podman.must("export", "--output", str(site.base / "b" / "rootfs.tar"), "export")
    podman.must("rm", "export")
    unpack(site.base / "b" / "rootfs.tar", made / "rootfs")
    mark(made / "rootfs")
    site.user.give(made)
    call(site, *site.command, "spec", "--rootless", "--bundle", str(made))
    set_program(made, SHOW)
    try:
        runs(site, made)
    finally:
        shutil.rmtree(made)


@pytest.mark.nightly
@pytest.mark.covers("guide Bundles: docker create, docker export")
@pytest.mark.covers("guide Types: Docker as root, rootless Docker")
def test_docker_export() -> None:
    """Bundles: what docker exports becomes one; here it is root's, whose dockerd this is."""
    with Docker() as docker:
        docker.must("create", "--name", "export", "busybox", "true")
        made = docker.base / "b" / "exported"
        (made / "rootfs").mkdir(parents=True)
        docker.must("export", "--output", str(docker.base / "b" / "rootfs.tar"), "export")
        docker.must("rm", "export")
        docker.settle()
        unpack(docker.base / "b" / "rootfs.tar", made / "rootfs")
        mark(made / "rootfs")
        call(docker.site, *docker.site.command, "spec", "--bundle", str(made))
        set_program(made, SHOW)
        assert docker.site.must("run", "--bundle", str(made), "c1") == MARK


@pytest.mark.covers("guide Bundles: runc spec --rootless, then srun --container")
@BOTH
def test_runc_spec(site: Site, bundle: Path) -> None:
    """Bundles: config.json of `runc spec --rootless`, as the guide has it."""
    (bundle / "config.json").unlink()
    call(site, "runc", "spec", "--rootless", "--bundle", str(bundle))
    set_program(bundle, SHOW)
    runs(site, bundle)


@pytest.mark.covers("guide Bundles: runc spec --rootless, then srun --container")
@BOTH
def test_scrun_spec(site: Site, bundle: Path) -> None:
    """Bundles: config.json of `scrun spec --rootless`."""
    runs(site, bundle)


# Images


@pytest.fixture
def image(site: Site) -> Path:
    """An OCI layout with the tags one and latest, as skopeo makes it of docker's archive."""
    place = site.base / "b" / "image"
    mark(site.rootfs)
    archive = image_archive(site)
    (site.rootfs / "etc" / "mark").unlink()
    policy = site.base / "b" / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    for tag in ("one", "latest"):
        target = f"oci:{place}:{tag}"
        call(site, "skopeo", "--policy", str(policy), "copy", f"docker-archive:{archive}", target)
    Layout(place).changed("latest", "latest", Cmd=SHOW)
    return place


def listing(site: Site) -> list[str]:
    return sorted(entry.name for entry in (site.base / "b").iterdir())


@pytest.mark.covers("scrun bundle")
@pytest.mark.covers("guide Required software: an OCI runtime that works without Slurm")
@pytest.mark.covers("guide Bundles: skopeo and scrun bundle")
@pytest.mark.parametrize("site", ["local-root", "local-user", "slurm-user"], indirect=True)
def test_skopeo_and_scrun_bundle(site: Site, image: Path) -> None:
    """Bundles: an image by skopeo, and a bundle of it that runs at once."""
    made = site.base / "b" / "made"
    assert site.must("bundle", str(image), str(made)) == ""
    runs(site, made)
    status = made.stat()
    assert (status.st_uid, status.st_mode & 0o077) == (site.user.uid, 0)
    assert {"config.json", "rootfs"} == set(os.listdir(made))
    assert not [name for name in listing(site) if name.startswith(".")]


@pytest.mark.covers("scrun bundle")
@BOTH
def test_what_an_image_has_at_a_volume_is_there(site: Site, image: Path) -> None:
    """There is no empty directory of its own in that place, from which nothing can be run."""
    Layout(image).changed("latest", "latest", Volumes={"/etc": {}, "/bin": {}})
    made = site.base / "b" / "made"
    site.must("bundle", str(image), str(made))
    assert site.must("run", "--bundle", str(made), "c1") == MARK


@pytest.mark.covers("guide Bundles: skopeo and scrun bundle")
def test_podman_save(podman: Podman) -> None:
    """Bundles: podman, too, writes images in the OCI layout."""
    site = podman.site
    place = site.base / "b" / "saved"
    podman.must("save", "--format", "oci-dir", "--output", str(place), "busybox")
    tag = json.loads((place / "index.json").read_text())["manifests"][0]
    made = site.base / "b" / "made"
    site.must("bundle", str(place), str(made))
    set_program(made, ["echo", tag["mediaType"]])
    try:
        assert site.must("run", "--bundle", str(made), "c1").startswith("application/vnd.oci.")
    finally:
        shutil.rmtree(made)


@pytest.mark.covers("scrun bundle", "guide Bundles: skopeo and scrun bundle")
@HERE
def test_the_tag_that_is_meant(site: Site, image: Path) -> None:
    """Without one it is latest; a directory may have a colon in its name."""
    odd = image.with_name("a:b")
    image.rename(odd)
    for number, name in enumerate((f"{odd}:one", f"{odd}", f"{odd}:latest")):
        site.must("bundle", name, str(site.base / "b" / f"made{number}"))
    words = [json.loads((site.base / "b" / f"made{number}" / "config.json").read_text())
             for number in range(3)]  # fmt: skip
    assert [config["process"]["args"] == SHOW for config in words] == [False, True, True]
    assert [config["process"]["terminal"] for config in words] == [False] * 3
    site.must("bundle", "--tty", str(odd), str(site.base / "b" / "made3"))
    config = json.loads((site.base / "b" / "made3" / "config.json").read_text())
    assert config["process"]["terminal"] is True


@pytest.mark.covers("scrun bundle", "guide Bundles: skopeo and scrun bundle")
@HERE
def test_what_cannot_be_made(site: Site, image: Path) -> None:
    before = listing(site)
    base = site.base / "b"
    for source, place, reason in (
        ("image:two", "made", "/b/image: there is no tag 'two': one, latest"),
        ("nowhere", "made", "/b/nowhere: no such directory; `skopeo copy SOURCE oci:"),
        ("nowhere:latest", "made", "/b/nowhere: no such directory; `skopeo copy SOURCE oci:"),
        (".", "made", "is not an OCI image: has no file oci-layout; `skopeo copy"),
        ("image", "image", "/b/image exists: remove it first, or name another path"),
        ("image", "no/where", "/b/no/where: cannot be made: No such file or directory"),
        ("image", "/made", "/made: cannot be made: Permission denied"),
    ):
        assert reason in site.fails("bundle", f"{base}/{source}", str(base / place))
    assert listing(site) == before


@pytest.mark.covers("guide Bundles: skopeo and scrun bundle")
@HERE
def test_a_layout_without_the_usual_tag(site: Site, image: Path) -> None:
    layout = Layout(image)
    one = layout.tagged("one")
    layout.index([])
    layout.tag(one, "one")
    layout.tag(one, "two")
    told = site.fails("bundle", str(image), str(site.base / "b" / "made"))
    assert "which image? name its tag, " in told
    assert told.endswith(": one, two\n")


@pytest.mark.covers("scrun bundle", "guide Bundles: skopeo and scrun bundle")
@HERE
@pytest.mark.parametrize("harm", ["missing", "garbled", "index"])
def test_an_image_that_is_damaged(site: Site, image: Path, harm: str) -> None:
    """It is told what is wrong with which file, and nothing is left."""
    largest = max((image / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    if harm == "missing":
        largest.unlink()
    elif harm == "garbled":
        largest.write_bytes(b"x" * largest.stat().st_size)
    else:
        (image / "index.json").write_text('{"manifests": [null, {"annotations": 5}, 7], "a":')
    before = listing(site)
    told = site.fails("bundle", f"{image}:latest", str(site.base / "b" / "made"))
    wrong = {
        "missing": f"{largest.name}: No such file or directory; get the image again",
        "garbled": "; get the image again",
        "index": "index.json: is not JSON",
    }
    assert wrong[harm] in told
    assert listing(site) == before


@pytest.mark.covers("scrun bundle", "guide Bundles: skopeo and scrun bundle")
@HERE
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, nightly(signal.SIGINT), nightly(signal.SIGHUP)]
)
def test_interrupted(site: Site, image: Path, number: signal.Signals) -> None:
    """Nothing is left of the bundle, nor of what unpacks it."""
    Layout(image).recompressed("latest", "latest", "zstd")
    before = listing(site)
    slow = site.base / "l" / "zstd"
    slow.write_text("#!/bin/sh\nexec sleep 618\n")
    slow.chmod(0o755)
    environment = {**site.environment, "PATH": f"{slow.parent}:{site.environment['PATH']}"}
    words = ("bundle", str(image), str(site.base / "b" / "made"))
    process = site.popen(*words, stdio=subprocess.DEVNULL, env=environment)
    with contextlib.ExitStack() as stack:
        stack.callback(process.wait, 20)
        stack.callback(process.kill)
        wait_until("it unpacks", lambda: any("618" in one.argv for one in site.processes()))
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert not [one for one in site.processes() if "618" in one.argv]
    assert listing(site) == before


# Ways to ask for a container


@pytest.fixture
def batch(site: Site) -> Iterator[Path]:
    """Where a batch job writes what it has to say."""
    place = site.base / "b" / "batch.out"
    yield place
    place.unlink(missing_ok=True)


@pytest.mark.covers("guide Requesting: sbatch --container BUNDLE --wrap COMMAND")
@SLURM
def test_batch_step_in_a_container(site: Site, bundle: Path, batch: Path) -> None:
    """Requesting: sbatch --container."""
    words = ("sbatch", "--wait", "--output", str(batch), "--error", "/dev/null")
    if cluster.has_oci_conf():
        call(site, *words, "--container", str(bundle), "--wrap", "cat /etc/mark")
        assert batch.read_text() == MARK
    detached = (*site.command, "run", "--detach", "--bundle", str(bundle), "c1")
    call(site, "sh", "-c", 'exec "$@" >batch.out', "sh", *detached)
    wait_until("its end", lambda: '"stopped"' in site.must("state", "c1"))
    assert batch.read_text() == MARK
    site.must("delete", "--force", "c1")


@pytest.mark.covers("guide Requesting: sbatch --wrap 'srun --container BUNDLE COMMAND'")
@SLURM
def test_batch_job_with_a_step_in_a_container(site: Site, bundle: Path, batch: Path) -> None:
    """Requesting: srun --container, and scrun run, within a batch job; the job is used."""
    sbatch = ("sbatch", "--wait", "--output", str(batch), "--wrap")
    if cluster.has_oci_conf():
        call(site, *sbatch, f"srun --container {bundle} /bin/cat /etc/mark")
        assert batch.read_text() == MARK
    command = " ".join(site.command)
    call(site, *sbatch, f"{command} run --bundle {bundle} c1; echo $SLURM_JOB_ID")
    assert batch.read_text().startswith(MARK)


@pytest.mark.covers("guide Requesting: salloc --container BUNDLE COMMAND")
@SLURM
def test_interactive_step_in_a_container(site: Site, bundle: Path) -> None:
    """Requesting: salloc --container, for which a cluster has to be set up; scrun run."""
    set_program(bundle, ["sh", "-c", "cat /etc/mark; echo $SLURM_JOB_ID"])
    said = site.must("run", "--bundle", str(bundle), "c1")
    assert said.startswith(MARK)
    assert said.removeprefix(MARK).strip().isdecimal()


@pytest.mark.covers("guide Requesting: salloc srun --container BUNDLE COMMAND")
@SLURM
def test_interactive_job_with_a_step_in_a_container(site: Site, bundle: Path) -> None:
    """Requesting: salloc srun --container, and salloc scrun run."""
    by_slurm(site, "salloc", "srun", "--container", str(bundle), *SHOW)
    assert call(site, "salloc", *site.command, "run", "--bundle", str(bundle), "c1") == MARK


@pytest.mark.covers("guide Requesting: srun --container BUNDLE COMMAND")
@SLURM
def test_step_0_in_a_container(site: Site, bundle: Path) -> None:
    """Requesting: srun --container, and scrun run."""
    by_slurm(site, "srun", "--container", str(bundle), *SHOW)
    assert site.must("run", "--bundle", str(bundle), "c1") == MARK


@pytest.mark.covers("guide Requesting: srun srun --container BUNDLE COMMAND")
@SLURM
def test_step_1_in_a_container(site: Site, bundle: Path) -> None:
    """Requesting: srun srun --container, and srun scrun run: a job that has a step already."""
    inner = ("srun", "--overlap", "--container", str(bundle), *SHOW)
    by_slurm(site, "srun", *inner)
    assert call(site, "srun", *site.command, "run", "--bundle", str(bundle), "c1") == MARK


@pytest.mark.covers("guide Requesting: steps do not inherit the container of the job")
@SLURM
def test_a_step_does_not_inherit_the_container(site: Site, bundle: Path) -> None:
    """Requesting: a step beside the container, in its job, is on the node."""
    set_program(bundle, ["sleep", "600"])
    life = site.life(bundle=bundle).created().start()
    wait_until("it runs", lambda: life.state()["status"] == "running")
    job = life.job_id
    words = ("srun", "--overlap", "--jobid", job, "sh", "-c", "test ! -e /etc/mark && echo node")
    assert call(site, *words) == "node\n"
    life.kill("KILL")
    life.wait()
    life.delete()


# Before all


@pytest.mark.covers("guide Prerequisites: user namespaces")
def test_the_kernel_permits_user_namespaces(make_site: MakeSite) -> None:
    """Prerequisites: what the guide asks sysctl and docker's setup tool for, doctor looks at."""
    site = make_site("local-user")
    lines = site.run("doctor").stdout.splitlines()
    assert [line for line in lines if line.startswith("ok    user namespaces: ")], lines
