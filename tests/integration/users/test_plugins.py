"""Engines and stagers of other packages: installed, listed, used, and refused.

The package is docs/examples/plugin, as it stands in docs/howto/plugins.md.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests import CHECKOUT
from tests.harness import users
from tests.harness.installation import Installation
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise plugins")

EXAMPLE = CHECKOUT / "docs" / "examples" / "plugin"
NOTHING = CHECKOUT / "docs" / "examples" / "plugin-none"
MISFITS = CHECKOUT / "tests" / "data" / "misfits"
SETTINGS = "idle_timeout = 20\n[plugins.queue]\nslots = 1\n"
WRITES = "echo changed > /etc/changed && cat /etc/changed"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with contextlib.closing(Installation()) as made:
        made.install(EXAMPLE)
        made.install(NOTHING)
        made.install(MISFITS)
        yield made


@pytest.fixture(params=["local-root", "local-user", "slurm-user"])
def place(request: pytest.FixtureRequest, installation: Installation) -> Iterator[Site]:
    engine, _, who = request.param.partition("-")
    user = users.root() if who == "root" else users.ordinary()
    site = Site(engine, user, SETTINGS, installation.binary)
    with contextlib.ExitStack() as stack:
        stack.callback(site.close)
        stack.callback(site.clear)
        yield site


LOCAL = pytest.mark.parametrize("place", ["local-root", "local-user"], indirect=True)
ONE = pytest.mark.parametrize("place", ["local-user"], indirect=True)


def bundle(site: Site, script: str, *, readonly: bool = True) -> str:
    config = site.config("sh", "-c", script)
    config["root"]["readonly"] = readonly
    return str(site.bundle(config))


def listed(site: Site, *options: str, **environment: str) -> dict[str, list[dict[str, Any]]]:
    done = site.run(*options, "plugins", "--format", "json", environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(done.stdout):
        found.setdefault(row["type"], []).append(row)
    return found


@pytest.mark.covers("scrun plugins, --engine, --stager")
@pytest.mark.covers("plugin-api Data objects: plugin_name, for people")
@ONE
def test_they_are_listed(place: Site) -> None:
    """Plugin API, data objects: type and name; runtime support: who sees what is installed."""
    rows = listed(place)
    built_in = ["engine/slurm", "engine/local", "stage/lua", "stage/builtin"]
    assert [*rows][:4] == built_in
    assert {rows[kind][0]["usable"] for kind in ("engine/none", "stage/none")} == {True}
    assert rows["engine/queue"] == [
        {
            "type": "engine/queue",
            "name": "This machine, a limited number of containers at a time",
            "version": "1.0.0",
            "package": "scrun-workstation 1.0",
            "usable": True,
            "reason": "",
        }
    ]
    assert rows["stage/throwaway"][0]["usable"] is True
    head, *lines = place.must("plugins").splitlines()
    assert head.split() == ["TYPE", "API", "PACKAGE", "NAME", "USABLE"]
    words = [line.split() for line in lines]
    assert ["stage/throwaway", "1.0.0", "scrun-workstation", "1.0"] in [w[:4] for w in words]
    assert next(w for w in words if w[0] == "engine/queue")[-1] == "yes"


@pytest.mark.covers("scrun plugins, --engine, --stager")
@pytest.mark.covers("plugin-api Data objects: plugin_version, another one is an error")
@pytest.mark.covers("plugin-api Runtime support: other dependencies of a plugin")
@ONE
def test_those_that_cannot_be_used_say_why(place: Site) -> None:
    """Plugin API, versioning: another version is an error; runtime support: dependencies."""
    rows = listed(place)
    reasons = {kind: row[-1]["reason"] for kind, row in rows.items() if not row[-1]["usable"]}
    assert reasons.pop("stage/lua").startswith("stager lua: there is no scrun.lua")
    assert reasons == {
        "engine/old": "is for version 0.9.0 of the plugin API, and this scrun has 1.0.0; install "
        "a matching version",
        "engine/needy": "needs the Python module scrun_is_not_this, which is not installed beside "
        "scrun; install it there",
        "engine/sulky": "its init failed: RuntimeError: not today",
        "engine/slurm": "scrun has one itself",
        "stage/mute": "has no function undo; ask its author",
        "sched/none": "not a plugin type: use engine/NAME or stage/NAME",
    }
    assert [row["package"] for row in rows["engine/slurm"]] == [
        rows["engine/local"][0]["package"],
        "scrun-misfits 2.1",
    ]


@pytest.mark.covers("scrun plugins, --engine, --stager")
@pytest.mark.covers("plugin-api Data objects: plugin_version, another one is an error")
@ONE
@pytest.mark.parametrize(
    ("option", "name", "reason"),
    [
        ("--engine", "old", "plugin engine/old (of scrun-misfits 2.1): is for version 0.9.0 of"),
        ("--engine", "needy", "needs the Python module scrun_is_not_this"),
        nightly("--engine", "sulky", "its init failed: RuntimeError: not today"),
        nightly("--engine", "clumsy", "plugin's module scrun_misfits: KeyError: 'c1'"),
        ("--engine", "quue", "plugin engine/quue is not installed beside scrun: is it queue? "),
        ("--stager", "mute", "plugin stage/mute (of scrun-misfits 2.1): has no function undo"),
        nightly(
            "--stager", "queue", "plugin stage/queue is not installed beside scrun: there are "
        ),
        nightly("--engine", "../x", "expected the name of a plugin"),
    ],
)
def test_one_clear_line_for_a_container(place: Site, option: str, name: str, reason: str) -> None:
    """Plugin API, versioning, init: what is not to be used ends the create, and no more."""
    words = ("run", "--bundle", bundle(place, "echo no"), "c1")
    assert reason in place.fails(option, name, *words)
    assert place.must("list", "--quiet") == ""
    assert place.must("run", "--bundle", bundle(place, "echo yes"), "c1") == "yes\n"


@pytest.mark.covers("scrun plugins, --engine, --stager")
@pytest.mark.covers("plugin-api Overview: objects that are loaded at run time")
@pytest.mark.covers("plugin-api Thread safety: functions are called reentrantly")
@pytest.mark.covers("plugin-api Runtime support: the standard library and Slurm's own")
@pytest.mark.covers("guide Container support via plugins: SPANK")
@LOCAL
def test_a_container_through_an_engine(place: Site) -> None:
    """Plugin API, API functions: engine/queue of the example runs containers, one at a time."""
    options = ("--engine", "queue")
    assert place.must(*options, "run", "--bundle", bundle(place, "echo hello"), "c1") == "hello\n"
    first = place.life("sleep", "600", options=options).created().start()
    assert first.state()["annotations"]["org.scrun.engine"] == "queue"
    second = place.life("true", options=options)
    log = place.root / second.id / "log"
    wait_until("the second waits", lambda: log.exists() and "waiting until" in log.read_text())
    assert json.loads(place.must("state", second.id))["status"] == "creating"
    first.kill("KILL")
    assert first.wait() == 137
    second.created().start()
    assert second.wait() == 0
    for life in (first, second):
        life.delete()


@ONE
def test_settings_of_a_plugin(place: Site) -> None:
    """A table that the plugin does not understand is an error that names it."""
    settings = place.base / "other.toml"
    settings.write_text('engine = "queue"\n[plugins.queue]\nslots = 0\n')
    words = ("--config-file", str(settings))
    told = place.fails(*words, "run", "--bundle", bundle(place, "true"), "c1")
    assert "[plugins.queue]: Expected `int` >= 1 - at `$.slots`" in told
    assert "[plugins.queue]" in listed(place, *words)["engine/queue"][0]["reason"]


@pytest.mark.covers("scrun plugins, --engine, --stager")
@pytest.mark.covers("plugin-api Overview: objects that are loaded at run time")
def test_a_container_through_a_stager(place: Site) -> None:
    """Plugin API, API functions: stage/throwaway of the example, on every engine."""
    words = ("--stager", "throwaway", "run", "--bundle", bundle(place, WRITES, readonly=False))
    assert place.must(*words, "c1") == "changed\n"
    assert not (place.rootfs / "etc" / "changed").exists()
    assert [entry for entry in os.listdir(place.root) if entry[0] != "@"] == []


@pytest.mark.parametrize("place", ["local-user", "slurm-user"], indirect=True)
def test_the_stager_undoes_what_a_dead_supervisor_left(place: Site) -> None:
    """Plugin API, API functions: undo; the record says who has staged."""
    config = place.config("sh", "-c", f"{WRITES}; exec sleep 600")
    config["root"]["readonly"] = False
    life = place.life(config=config, options=("--stager", "throwaway")).created().start()
    record = place.root / life.id
    wait_until("it runs", lambda: life.state()["status"] == "running")
    assert (record / "bundle.root" / "bin" / "busybox").exists()
    assert json.loads((record / "state.json").read_text())["stager"] == "throwaway"
    place.kill_supervisors()
    life.wait()
    place.must("delete", "--force", life.id)
    assert not record.exists()
    assert not (place.rootfs / "etc" / "changed").exists()


@pytest.mark.covers("plugin-api Data objects: plugin_type")
@ONE
def test_the_null_plugins(place: Site) -> None:
    """Plugin API, data objects: null plugins have the minor type none."""
    life = place.life("sh", "-c", "exit 7", options=("--engine", "none")).created()
    life.start().ends()
    config = place.mapped("sh", "-c", "exit 7")
    config["linux"]["namespaces"] = [{"type": kind} for kind in ("mount", "pid", "user")]
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] == "proc"]
    del config["hostname"]
    words = ("run", "--bundle", str(place.bundle(config)), "c1")
    done = place.run("--stager", "none", *words)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.covers("security plugins: engines and stagers of other packages")
@ONE
def test_only_what_is_installed_with_scrun_counts(place: Site, tmp_path_factory: Any) -> None:
    """Neither the caller's directory nor the environment's paths bring plugins in."""
    home = place.base / "l"
    info = home / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[scrun.plugins]\nengine/evil = evil\n")
    (home / "evil.py").write_text("raise SystemExit('evil was imported')\n")
    variables = {"PYTHONPATH": str(home), "PYTHONUSERBASE": str(home)}
    assert "engine/evil" not in listed(place, **variables)
    words = ("--engine", "evil", "run", "--bundle", bundle(place, "true"), "c1")
    done = place.run(*words, environment=variables)
    assert done.returncode == 1
    assert "plugin engine/evil is not installed beside scrun" in done.stderr
