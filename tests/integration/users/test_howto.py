"""The blocks of the pages below docs/howto, as they stand there.

A block whose lines begin with `$` is a session of an ordinary user with a cluster and podman; one
whose lines begin with `#` is root's, with docker and containerd. Both have `Reader.paths` in the
place of some paths of the page. The images that the pages name come from a registry of the test.
Other blocks are read by the program that reads such a file.
"""

import contextlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping

import pytest

from scrun.cli.columns import usage_line
from scrun.commands.stats import HEAD
from scrun.model.usage import Usage
from tests import CHECKOUT
from tests.harness import cluster, users
from tests.harness.bundle import write_bundle
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.installation import Installation
from tests.harness.nightly import nightly
from tests.harness.pages import HOWTO, blocks
from tests.harness.reader import Reader, reading, shows
from tests.harness.session import Step, steps_of
from tests.harness.squashfs import fuse_for_all
from tests.harness.wait import wait_until

ELSEWHERE = {
    "jobs.md": "it has batch scripts: tests/integration/slurm/test_jobs_page.py",
    "notebook.md": "it needs a browser: tests/integration/users/test_notebook_page.py",
    "metrics.md": "its command goes on: tests/unit/scrun/commands/test_metrics.py",
    "top.md": "it is a screen: tests/integration/commands/test_top.py",
    "clients.md": "its user needs a podman of his own: tests/clients",
    "report.md": "its containers have run before: tests/unit/scrun/commands/test_report.py",
    "networks.md": "its image has a web server: tests/integration/engines/test_networks.py",
    "install.md": "it makes environments from PyPI: tests/integration/users/test_wheel.py",
}
"""Pages whose blocks another test runs, or nobody can, and why."""

TRAIN = "docker://registry.site/train:3 python train.py"
LEFT_OUT = {
    "# debootstrap stable ~user/bundles/debian/rootfs":
        "from the net",
    "# chown -R user: ~user/bundles/debian": "of what debootstrap would have made",
    "# ctr image pull registry.site/alpine:latest": "from the net",
    f"$ scrun run -N 1 -c 8 --mem 16G --gpus 1 -t 60 {TRAIN}": "the cluster has no GPU",
    "$ xdg-open $(scrun forward --print-url --detach notebook 0:8888)": "there is no desktop",
    "$ systemctl --user daemon-reload && systemctl --user restart docker": "there is no systemd",
    "$ scrun outside dockerd-rootless.sh": "tests/integration/engines/test_docker.py does it",
    "$ ssh -L 8888:127.0.0.1:8888 login scrun forward notebook 8888": "there is no login node",
    "scrun install podman|docker|docker-api [--default] [--system] [--dry-run] [--undo]":
        "a synopsis",
}  # fmt: skip
"""Commands, and other blocks by their first lines, that are not run, and why."""


def next_job() -> int:
    """The number of the next job of the cluster: containers that made none were run elsewhere."""
    found = re.search(r"NEXT_JOB_ID *= (\d+)", cluster.slurm("scontrol", "show", "config"))
    assert found is not None
    return int(found[1])


# --- what a page needs that its reader has


def nothing(reader: Reader) -> None:
    """It needs what every reader has."""


def engines(reader: Reader) -> None:
    docker = reader.stack.enter_context(contextlib.closing(Docker()))
    docker.must("tag", "busybox", "alpine")
    names = ("DOCKER_HOST", "DOCKER_CONFIG")
    reader.wrap("docker", *docker.command, **{name: docker.environment[name] for name in names})
    containerd = reader.stack.enter_context(contextlib.closing(Containerd()))
    containerd.must("image", "tag", IMAGE, "registry.site/alpine:latest")
    reader.wrap("ctr", *containerd.command)
    # else its records would be in the place of this machine's
    reader.paths["ctr run"] = f"ctr run --runc-root {containerd.records.parent}"


def mpi(reader: Reader) -> None:
    reader.bundle("ranks", "true")
    reader.stack.enter_context(cluster.without_oci_conf())  # whose commands pass no descriptor on


def images(reader: Reader) -> None:
    reader.write("data/train.csv", "1\n")


def oci_conf(reader: Reader) -> None:
    reader.bundle("alpine", "true")
    example = CHECKOUT / "docs" / "examples" / "oci.conf" / "crun-run.conf"
    reader.write("slurm/oci.conf", example.read_text())
    reader.paths["/etc/slurm/"] = f"{reader.home}/slurm/"


def plugins(reader: Reader) -> None:
    reader.bundle("alpine", "true")
    example = "docs/examples/plugin"
    shutil.copytree(CHECKOUT / example, reader.home / example)
    made = reader.stack.enter_context(contextlib.closing(Installation()))
    reader.site.user.give(made.base)
    reader.wrap("scrun", made.binary)
    offline = "--no-index --no-deps --no-build-isolation --quiet"
    pip = f"{made.base}/bin/python3 -m pip install {offline} --target {made.site}"
    reader.paths["/opt/scrun/bin/pip install"] = pip


def pods(reader: Reader) -> None:
    [big] = [
        step.output
        for block in blocks(HOWTO / "pods.md")
        if block.text.startswith("$ cat big.conf")
        for step in steps_of(block.text)[:1]
    ]
    reader.write("big.conf", "\n".join(big) + "\n")


def files(reader: Reader) -> None:
    fuse_for_all()
    reader.bundle("train", "sleep", "1000")


def ports(reader: Reader) -> None:
    reader.bundle("notebook", "sleep", "1000")


@contextlib.contextmanager
def partition(name: str) -> Iterator[None]:
    cluster.slurm("scontrol", "create", f"PartitionName={name}", "Nodes=ALL", "State=UP")
    try:
        yield
    finally:
        cluster.slurm("scontrol", "delete", f"PartitionName={name}")


def requests(reader: Reader) -> None:
    reader.bundle("alpine", "true")
    reader.stack.enter_context(partition("gpu"))


def services(reader: Reader) -> None:
    reader.bundle("web", "true")
    reader.paths["/srv/web"] = f"{reader.home}/bundles/web"


def spank(reader: Reader) -> None:
    script = CHECKOUT / "tests" / "data" / "spank-lua.8.lua"
    reader.write("lua.d/memory.lua", script.read_text())
    reader.paths["/etc/slurm/lua.d/"] = f"{reader.home}/lua.d/"


STACK = '[spank]\nplugstack = "@BASE@/h/plugstack.conf"\n'

PAGES: Mapping[str, tuple[int, Callable[[Reader], None], str]] = {
    "bundles.md": (2, nothing, ""),
    "doctor.md": (1, nothing, ""),
    "engines.md": (4, engines, ""),
    "files.md": (3, files, 'launch = "shim"\n'),
    "images.md": (6, images, ""),
    "map.md": (1, nothing, 'launch = "shim"\n'),
    "mpi.md": (2, mpi, 'launch = "shim"\n'),
    "oci-conf.md": (0, oci_conf, ""),
    "plugins.md": (1, plugins, ""),
    "pods.md": (2, pods, ""),
    "pools.md": (6, nothing, 'launch = "shim"\n'),
    "ports.md": (1, ports, 'launch = "shim"\n'),
    "requests.md": (3, requests, ""),
    "services.md": (1, services, ""),
    "spank.md": (0, spank, STACK),
}
"""For each page how many jobs it makes at least, what its reader needs, and more of scrun.toml."""
FEW = ("images.md", "ports.md", "requests.md", "services.md")
"""Whose commands other tests play least."""


# --- blocks that are no session


def toml(reader: Reader, text: str) -> None:
    reader.write("read.toml", text)
    reader.session([Step("scrun --config-file read.toml plugins")], reader.site.user)


def part_of_config(reader: Reader, text: str) -> None:
    """Change the config.json that the page has made before, and run it."""
    path = reader.home / "bundles" / "exported" / "config.json"
    config = json.loads(path.read_text())
    config["process"].update(json.loads("{" + text.strip().rstrip(",") + "}"))
    path.write_text(json.dumps(config))
    step = Step("scrun run --bundle ~/bundles/exported two", ["ID=test"])
    reader.session([step], reader.site.user)


def entry_points(reader: Reader, text: str) -> None:
    [name] = tomllib.loads(text)["project"]["entry-points"]["scrun.plugins"]
    assert name == "engine/queue"


def python(reader: Reader, text: str) -> None:
    compile(text, "a block", "exec")


def plugstack(reader: Reader, text: str) -> None:
    reader.write("plugstack.conf", reader.here(text))


def in_a_full_cluster(reader: Reader, text: str) -> None:
    """Slurm need not know when the job may start."""
    reader.bundle("waits", "true")
    environment = reader.environment(reader.site.user)
    words = ("scrun", "run", "--bundle", f"{reader.home}/bundles/waits", "waits")
    with cluster.full(reader.site.user):
        process = subprocess.Popen(
            [*reader.site.user.prefix, "env", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until("its job", lambda: len(cluster.jobs(reader.site.user)) == 2, 30)
        wait_until("the reason", lambda: "Resources" in reader.must("scrun", "list"), 30)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    for line in text.replace(", starts about 14:05", "…").splitlines():
        assert shows(["…", f"…{line}", "…"], said), said


def too_large(reader: Reader, text: str) -> None:
    config = reader.site.config("true")
    config["process"]["env"].append("SCRUN_JOB_NUM_NODES=2")
    write_bundle(reader.home / "bundles" / "large", config)
    reader.site.user.give(reader.home)
    smaller = cluster.changed("PartitionName=test", "MaxNodes=1", back="MaxNodes=UNLIMITED")
    told = "scrun: " + " ".join(text.split())
    step = Step("scrun run --bundle ~/bundles/large c1 || true", ["…", told])
    with smaller:
        reader.session([step], reader.site.user)


def used(reader: Reader, text: str) -> None:
    usage = Usage(user=370.1, system=1.1, memory=1_290_000_000, wall=94.1, cpus=8, limit=64 << 30)
    assert text == f"scrun: {usage_line(usage)}\n"


def table_of_stats(reader: Reader, text: str) -> None:
    assert text.split("\n")[0].split() == [*HEAD]


def by_another_test(reader: Reader, text: str) -> None:
    """The recipes have a test of their own: `test_services`."""


PENDING = "job 42 pending: Resources, starts about 14:05 (the nodes are busy)"
USED = (
    "scrun: used: 94.1 s, 371.2 s of processor time (3.9 of 8 processors), "
    "1.2GiB of memory (of 64.0GiB)"
)
NEVER = "job 44 can never start: PartitionNodeLimit (the partition does not"
OTHERS: Mapping[tuple[str, str], Callable[[Reader, str], None]] = {
    ("pools.md", "[slurm]"): toml,
    ("engines.md", f"scrun: {PENDING}"): in_a_full_cluster,
    ("requests.md", PENDING): in_a_full_cluster,
    ("requests.md", USED): used,
    ("requests.md", "ID     CPU%   TIME     MEMORY   LIMIT    MEMORY%  THREADS"): table_of_stats,
    ("requests.md", f"no job for container c1: {NEVER}"): too_large,
    ("bundles.md", '"terminal": false,'): part_of_config,
    ("oci-conf.md", "[local]"): toml,
    ("plugins.md", 'engine = "queue"'): toml,
    ("plugins.md", '[project.entry-points."scrun.plugins"]'): entry_points,
    ("plugins.md", 'plugin_type = "engine/queue"        # as in the entry point'): python,
    ("requests.md", "[slurm]"): toml,
    ("services.md", "[Unit]"): by_another_test,
    ("services.md", "[Service]"): by_another_test,
    ("services.md", "check process web with pidfile /run/web.pid"): by_another_test,
    ("services.md", "#!/bin/sh"): by_another_test,
    ("services.md", "[program:web]"): by_another_test,
    (
        "services.md",
        "@reboot    /usr/bin/scrun run --replace --detach --bundle /srv/web web",
    ): by_another_test,
    ("spank.md", "required lua.so /etc/slurm/lua.d/*.lua"): plugstack,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page if page in FEW else nightly(page) for page in PAGES])
def test_the_blocks_do_what_the_page_says(page: str) -> None:
    jobs, needs, settings = PAGES[page]
    with reading(settings) as reader:
        needs(reader)
        before = next_job()
        for block in blocks(HOWTO / page):
            first = block.text.splitlines()[0]
            prompt = first[:2]
            if prompt in ("$ ", "# "):
                user = reader.site.user if prompt == "$ " else users.root()
                given = [
                    step
                    for step in steps_of(block.text, prompt)
                    if prompt + step.command not in LEFT_OUT
                ]
                reader.session(given, user)
            elif first not in LEFT_OUT:
                OTHERS[page, first](reader, block.text)
        assert next_job() - before >= jobs


def test_every_page_is_read() -> None:
    assert {*PAGES, *ELSEWHERE} == {path.name for path in HOWTO.glob("*.md")}


def test_what_is_left_out_is_there() -> None:
    pages = [(page.name, page.read_text()) for page in HOWTO.glob("*.md")]
    lines = {line.strip() for _, text in pages for line in text.splitlines()}
    assert [line for line in LEFT_OUT if line not in lines] == []
    assert [first for _, first in OTHERS if first not in lines] == []
