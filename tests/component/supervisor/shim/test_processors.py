"""The processors of a container: those of its shim, whatever its runtime gives it."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.component.supervisor.shim.conftest import MakeShim
from tests.harness import users
from tests.harness.shim import Shim

ALL = sorted(os.sched_getaffinity(0))
ONE = ALL[0]
SHOW = ("grep", "Cpus_allowed_list", "/proc/self/status")


def bound_shim(make_shim: MakeShim, user: str, runtime: str, folder: Path) -> Shim:
    """A shim that may use one processor, with a runtime that gives all to containers.

    Those of today do that by themselves.
    """
    folder.mkdir(exist_ok=True)
    for name in ("crun", "runc"):
        program = folder / name
        wide = ",".join(map(str, ALL))
        real = shlex.quote(str(shutil.which(name)))
        ours = f'case " $* " in *" create "*) taskset -cp {wide} $$ >/dev/null;; esac\n'
        program.write_text(f'#!/bin/sh\n{ours}exec {real} "$@"\n' if name == runtime else "no")
        program.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    who = users.root() if user == "root" else users.ordinary()
    shim = make_shim(env, who, before=("taskset", "-c", str(ONE)))
    assert shim.hello["runtime"] == str(folder / runtime)
    return shim


@pytest.mark.parametrize("runtime", ["crun", "runc"])
@pytest.mark.parametrize("user", ["root", "user"])
def test_those_of_its_shim(make_shim: MakeShim, user: str, runtime: str, rootfs: Path) -> None:
    shim = bound_shim(make_shim, user, runtime, rootfs.parent / f"gives-all-{runtime}")
    streams = shim.streams("stdout")
    shim.run("a", *SHOW, streams=streams)
    assert shim.finish(streams["stdout"]).split()[1] == str(ONE).encode()
    assert shim.ended("a") == 0
    shim.run("b", "sleep", "1000")
    streams = shim.streams("stdout")
    assert "error" not in shim.exec("e", "b", *SHOW, streams=streams)
    assert shim.finish(streams["stdout"]).split()[1] == str(ONE).encode()
