import msgspec
import pytest

from scrun.core.errors import SettingsError
from scrun.settings.slurm.versions import Features, SlurmVersion, features, parse_version


@pytest.mark.parametrize(
    ("text", "version", "shown"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5, 8), "22.05.8"),
        ("slurm 24.11.5\n", (24, 11, 5), "24.11.5"),
        ("slurm 26.05.0-0rc1", (26, 5, 0), "26.05.0"),
        ("slurm 23.02-pre1", (23, 2, 0), "23.02.0"),
        ("salloc: a warning first\nslurm-wlm 22.05.8", (22, 5, 8), "22.05.8"),
    ],
)
def test_parse(text: str, version: tuple[int, int, int], shown: str) -> None:
    parsed = parse_version(text)
    assert parsed == SlurmVersion(*version)
    assert parsed.release == version[:2]
    assert str(parsed) == shown


@pytest.mark.parametrize("text", ["", "slurm", "slurm x.y", "22.05.8", "munge 0.5"])
def test_no_version(text: str) -> None:
    with pytest.raises(SettingsError, match="version"):
        parse_version(text)


def test_order() -> None:
    assert SlurmVersion(22, 5, 8) < SlurmVersion(22, 5, 10) < SlurmVersion(23, 2)


def test_features() -> None:
    assert features(SlurmVersion(22, 5, 8)) == Features(
        container_id=False,
        job_container_id=False,
        forces_rootfs=True,
        tasks_per_node=1,
        real_terminal=False,
        node_finds_program=False,
        mounts_spool=False,
        spool_mount="",
        env_exclude=False,
        tool_threads=6,
    )
    new = Features(
        container_id=True,
        job_container_id=True,
        forces_rootfs=False,
        tasks_per_node=None,
        real_terminal=True,
        node_finds_program=True,
        mounts_spool=True,
        spool_mount="/var/run/slurm",
        env_exclude=True,
        tool_threads=6,
    )
    assert features(SlurmVersion(24, 11, 5)) == new
    assert features(SlurmVersion(26, 5)) == msgspec.structs.replace(
        new, spool_mount="", tool_threads=12
    )


def test_the_container_of_a_pending_job() -> None:
    assert not features(SlurmVersion(24, 5)).job_container_id


def test_too_old() -> None:
    with pytest.raises(SettingsError, match=r"21\.08\.8 is too old"):
        features(SlurmVersion(21, 8, 8))


def test_a_salloc_without_a_slurm_conf_says_nothing() -> None:
    with pytest.raises(SettingsError, match=r"finds no slurm\.conf; name one by SLURM_CONF, -f"):
        parse_version("")
