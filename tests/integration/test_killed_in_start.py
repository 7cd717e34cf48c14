"""A signal that comes while the runtime of this machine starts the container."""

import os
import shutil
import signal

import pytest

from tests.conftest import MakeSite
from tests.harness.wait import wait_until

# as runc 1.1.5, when the signal meets it between its create and its start
_FAILS = """#!/bin/sh
if [ -e {base}/l/fail ]; then
    case " $* " in
    *" kill "*) touch {base}/l/killed; sleep {after}; exit 0 ;;
    *" run "*)
        touch {base}/l/begun
        until [ -e {base}/l/killed ]; do sleep 0.05; done
        echo '{{"level": "error", "msg": "cannot start an already running container"}}' \\
            > {base}/r/c1/runtime.log
        exit 1 ;;
    esac
fi
exec {runc} "$@"
"""


@pytest.mark.parametrize("after", [0, 1])
def test_it_is_what_the_container_ended_by(make_site: MakeSite, after: int) -> None:
    """Whether the runtime's kill has ended before its run, or not yet."""
    site = make_site("local-root", settings='idle_timeout = 5\n[local]\nruntime = "@RUNC@"\n')
    runtime = site.base / "runc"
    runtime.write_text(_FAILS.format(base=site.base, after=after, runc=shutil.which("runc")))
    runtime.chmod(0o755)
    settings = site.base / "scrun.toml"
    settings.write_text(settings.read_text().replace("@RUNC@", str(runtime)))
    life = site.life("sleep", "600", container="c1").created()
    (site.base / "l" / "fail").touch()
    life.start()
    wait_until("the runtime begins", (site.base / "l" / "begun").exists)
    os.kill(life.anchor, signal.SIGTERM)
    assert life.wait() == 143
    assert life.state()["annotations"]["org.scrun.reason"] == "killed"
    life.delete()
