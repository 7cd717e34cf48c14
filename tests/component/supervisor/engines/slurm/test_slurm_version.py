"""The question for Slurm's version, which many `create`s have at once."""

from pathlib import Path

import pytest
import trio

from scrun.core.errors import EngineUnavailable
from scrun.settings.file.load import RuntimeSettings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.slurm import engine as module
from scrun.supervisor.engines.slurm.engine import SlurmConfiguration, SlurmEngine
from scrun.supervisor.engines.slurm.tools import Tools
from tests.harness import users

_CALLERS = 5
ENV = ChildEnv({"PATH": users.PATH})


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A file with a line for each call of salloc."""
    return tmp_path / "asked"


@pytest.fixture
def engine(tmp_path: Path, asked: Path) -> SlurmEngine:
    """An engine whose salloc hangs as long as there is a file `hangs`."""
    salloc = tmp_path / "salloc"
    (tmp_path / "hangs").touch()
    (tmp_path / "slurm.conf").touch()
    text = f"echo >>{asked}\n[ ! -e {tmp_path}/hangs ] || exec sleep 60\necho slurm 24.11.5\n"
    salloc.write_text("#!/bin/sh\n" + text)
    salloc.chmod(0o755)
    tools = Tools(str(salloc), ("/bin/true",), "/bin/scancel", str(tmp_path / "slurm.conf"), ())
    allowed, runtime = frozenset[str](), RuntimeSettings()
    return SlurmEngine(SlurmConfiguration(tools, 1, (), (), (), allowed, runtime, "auto"))


def times(asked: Path) -> int:
    return asked.read_text().count("\n")


async def test_all_that_wait_are_refused_at_once(
    engine: SlurmEngine, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asked again, one after the other: the sixth one waited for a minute."""
    monkeypatch.setattr(module, "_ANSWER", 1.0)
    refused: list[float] = []
    began = trio.current_time()

    async def ask() -> None:
        with pytest.raises(EngineUnavailable, match="does not answer"):
            await engine.version(ENV)
        refused.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(_CALLERS):
            nursery.start_soon(ask)
    assert len(refused) == _CALLERS
    assert max(refused) < 3
    assert times(asked) == 1
    (tmp_path / "hangs").unlink()
    assert (await engine.version(ENV)).major == 24  # who comes later asks again


async def test_a_slurm_conf_that_is_not_there(engine: SlurmEngine, tmp_path: Path) -> None:
    """Slurm's tools would look for it for a minute, and scrun did not say what they look for."""
    (tmp_path / "slurm.conf").unlink()
    with pytest.raises(EngineUnavailable, match=f"{tmp_path}/slurm.conf does not exist: correct"):
        await engine.version(ENV)


async def test_a_slurm_conf_that_is_wrong(engine: SlurmEngine, tmp_path: Path) -> None:
    says = ["echo 'salloc: error: wrong key: Foo' >&2", "echo 'salloc: fatal: no' >&2", "exit 1"]
    (tmp_path / "salloc").write_text("\n".join(["#!/bin/sh", *says, ""]))
    with pytest.raises(EngineUnavailable, match="salloc --version: salloc: error: wrong key: Foo"):
        await engine.version(ENV)


async def test_a_salloc_that_crashes(engine: SlurmEngine, tmp_path: Path) -> None:
    """As Slurm's does with a small `ulimit -s`; a missing slurm.conf was named as the reason."""
    (tmp_path / "salloc").write_text("#!/bin/sh\nkill -SEGV $$\n")
    with pytest.raises(EngineUnavailable, match=r"it was killed by signal 11 \(SIGSEGV\)"):
        await engine.version(ENV)
