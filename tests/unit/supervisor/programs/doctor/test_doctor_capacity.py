"""How many containers doctor finds room for, without a machine around it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.programs.doctor.capacity import (
    FILES,
    MEMORY,
    Host,
    begin_in_an_hour,
    count_listening,
    judge_capacity,
    port_range,
    walls,
)

WIDE, RANGE = (1024, 65535), (60001, 63000)
THREADS = 10


def host(ports: tuple[int, int] = WIDE, **left: Any) -> Host:
    """Return a machine where ports are as many as can be, and nothing else is limited."""
    return Host(ports, THREADS, **left)


@pytest.mark.parametrize(
    ("left", "number", "name", "remedy"),
    [
        (
            host(RANGE, srun_ports=True),
            750,
            "SrunPortRange=60001-63000",
            "SrunPortRange",
        ),
        (host(RANGE, listening=2960, srun_ports=True), 10, "ports", "SrunPortRange"),
        (host((32768, 60999)), 7058, "ports (32768-60999)", "ip_local_port_range"),
        (host(files=4096), 134, "open files (4096)", "nofile"),
        (host(processes=40 * THREADS), 40, "ulimit -u", "nproc"),
        (
            host(tasks=(33 * THREADS, "user-7.slice")),
            33,
            "user-7.slice",
            "TasksMax",
        ),
        (host(memory=100 * MEMORY), 100, "memory", "submit host"),
        (host(locks=2048), 2048, "podman's locks (2048)", "num_locks"),
        (
            host(files=4096, locks=100, memory=99 * MEMORY),
            99,
            "memory",
            "submit host",
        ),
    ],
)
def test_the_first_wall(left: Host, number: int, name: str, remedy: str) -> None:
    first = walls(left)[0]
    assert first.containers == number
    assert name in first.name
    assert remedy in first.remedy
    found = judge_capacity(left)
    assert (found.status, found.remedy) == ("ok", "")
    assert f"room for about {number} more containers" in found.text
    assert remedy in found.text


def test_few_are_worth_a_warning() -> None:
    found = judge_capacity(host(files=64 + 9 * FILES))
    assert found.status == "warn"
    assert "nofile" in found.remedy
    assert "a pod" in found.remedy
    assert judge_capacity(host(files=10)).text.startswith("room for about 0 more")


@pytest.mark.parametrize(
    ("parameters", "number"),
    [
        ("", None),
        ("enable_configless", None),
        ("rl_bucket_size=40", None),
        ("enable_configless,rl_enable", 1440),
        ("RL_ENABLE, rl_refill_rate=4,rl_refill_period=60", 48),
        ("rl_enable,rl_refill_rate=x,rl_refill_period=0", 1440),
        ("rl_enable,rl_refill_rate=10", 7200),
    ],
)
def test_how_many_may_begin(parameters: str, number: int | None) -> None:
    assert begin_in_an_hour({"slurmctldparameters": parameters}) == number


def test_the_rate_is_told() -> None:
    text = judge_capacity(host(begin=1440)).text
    assert "slurmctld lets 1440 begin in an hour (rl_enable)" in text
    assert "rl_enable" not in judge_capacity(host()).text


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("60001-63000", (60001, 63000)),
        ("32768\t60999\n", (32768, 60999)),
        ("63000-60001", None),
        ("0", None),
        ("", None),
    ],
)
def test_ranges(text: str, ports: tuple[int, int] | None) -> None:
    assert port_range(text) == ports


def test_ports_on_which_somebody_listens() -> None:
    """Once, whatever the addresses; connections do not count."""
    tables = (
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 0100007F:EA61 00000000:0000 0A 00000000:00000000 00:00000000\n"  # 60001
        "   1: 00000000:EA61 00000000:0000 0A 00000000:00000000 00:00000000\n"
        "   2: 0100007F:EA62 0100007F:1F90 01 00000000:00000000 00:00000000\n"
        "   3: 00000000000000000000000000000000:EA63 0000:0000 0A 0:0 00:0\n"  # 60003
        "   4: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000\n"
    )
    assert count_listening(tables, (60001, 63000)) == 2


@given(st.text())
def test_any_text(text: str) -> None:
    begin_in_an_hour({"slurmctldparameters": text})
    port_range(text)
