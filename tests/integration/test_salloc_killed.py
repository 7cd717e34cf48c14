"""A salloc that is killed before it can say which job it was granted."""

import shutil

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.wait import wait_while

# the job's shell gets another standard input, so that it cannot tell either
_KILLED = """#!/bin/sh
sleep 5 | {salloc} "$@" 2>/dev/null &
sleep 0.5
kill -KILL $!
kill -KILL $$
"""


def test_its_job_is_given_back(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='idle_timeout = 5\n[slurm]\nbin = "@BIN@"\n')
    directory = site.base / "bin"
    directory.mkdir()
    for name in ("srun", "scancel", "squeue"):
        (directory / name).symlink_to(shutil.which(name) or name)
    salloc = directory / "salloc"
    salloc.write_text(_KILLED.format(salloc=shutil.which("salloc")))
    salloc.chmod(0o755)
    settings = site.base / "scrun.toml"
    settings.write_text(settings.read_text().replace("@BIN@", str(directory)))
    assert "no job for container" in site.life("true").refused()
    wait_while("its job", lambda: cluster.jobs(site.user, site.base.name), 5)
