"""What a container with a job of its own takes on the submit host: doctor computes with it."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from scrun.settings.slurm.versions import features, parse_version
from scrun.supervisor.programs.doctor.capacity import FILES, MEMORY, PORTS, THREADS
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.processes import descendants, processes
from tests.harness.site import Site

pytestmark = pytest.mark.covers("promise doctor and install")

MORE = 4
RANGE = (61000, 61099)
_PSS = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)


def submit_side(site: Site) -> list[int]:
    """The processes of the place that are neither nodes' nor in containers.

    The parent of each container's anchor is a subreaper of the tests, in conmon's place.
    """
    on_nodes = {
        below
        for one in processes()
        if one.argv[0].startswith("slurmstepd")
        for below in (one.pid, *descendants(one.pid))
    }
    inside = f"SITE={site.base}"
    found = [one for one in site.processes() if inside not in one.environment]
    return [one.pid for one in found if one.pid not in on_nodes]


def listening(pids: Iterable[int]) -> set[int]:
    """The TCP ports on which processes listen."""
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    ports = {f"socket:[{row[9]}]": row[1] for row in rows if row[3] == "0A"}
    links = {
        os.readlink(f"/proc/{pid}/fd/{fd}") for pid in pids for fd in os.listdir(f"/proc/{pid}/fd")
    }
    return {int(ports[link].rpartition(":")[2], 16) for link in links & ports.keys()}


def memory(pids: Iterable[int]) -> int:
    texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(number) << 10 for text in texts for number in _PSS.findall(text))


def taken(site: Site) -> dict[str, int]:
    pids = submit_side(site)
    stand_ins = [one.pid for one in site.processes() if "subreaper" in " ".join(one.argv)]
    return {
        "ports": len(listening(pids)),
        "files": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in site.supervisors()),
        "threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        "memory": memory(set(pids) - set(stand_ins)),
    }


def test_what_a_container_takes(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')
    site.life("sleep", "60").created().start()
    before = taken(site)
    for _ in range(MORE):
        site.life("sleep", "60").created().start()
    after = taken(site)
    each = {name: (after[name] - before[name]) / MORE for name in after}
    assert each["ports"] == PORTS
    assert each["files"] == pytest.approx(FILES, abs=1)
    version = parse_version(cluster.slurm("salloc", "--version"))
    expected = THREADS + features(version).tool_threads
    assert each["threads"] == pytest.approx(expected, abs=1)
    assert MEMORY / 2 < each["memory"] < MEMORY


def test_all_ports_are_of_the_sites_range(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')
    conf, (first, last) = site.base / "slurm.conf", RANGE
    text = Path(cluster.slurm_conf()).read_text()
    conf.write_text(f"{text}SrunPortRange={first}-{last}\n")
    site.environment["SLURM_CONF"] = str(conf)
    site.life("sleep", "60").created().start()
    ports = listening(submit_side(site))
    assert len([port for port in ports if first <= port <= last]) == PORTS, ports
