"""What an `update` asks for, from its options, and what of it would be a change."""

from typing import Any

import pytest

from scrun.cli.grammar import COMMANDS
from scrun.core.errors import UsageError
from scrun.oci.resources import changes, resources_from_options


@pytest.mark.covers("scrun update")
@pytest.mark.parametrize(
    ("options", "resources"),
    [
        ({}, {}),
        ({"memory": True, "root": "/x", "pids-limit": None}, {}),  # no values of ours
        ({"memory": "0"}, {"memory": {"limit": 0}}),
        ({"memory": "1024"}, {"memory": {"limit": 1024}}),
        ({"memory": "1k"}, {"memory": {"limit": 1024}}),
        ({"memory": "2M"}, {"memory": {"limit": 2 << 20}}),
        ({"memory": "3g"}, {"memory": {"limit": 3 << 30}}),
        ({"memory": "4T"}, {"memory": {"limit": 4 << 40}}),
        ({"memory-swap": "-1"}, {"memory": {"swap": -1}}),
        ({"memory": "9223372036854775807"[:18]}, {"memory": {"limit": 922337203685477580}}),
        ({"memory": "1", "memory-reservation": "2"}, {"memory": {"limit": 1, "reservation": 2}}),
        ({"cpu-quota": "-1", "cpu-period": "9"}, {"cpu": {"quota": -1, "period": 9}}),
        ({"cpuset-cpus": "0-3,7", "cpuset-mems": "0"}, {"cpu": {"cpus": "0-3,7", "mems": "0"}}),
        ({"cpuset-cpus": "1k"}, {"cpu": {"cpus": "1k"}}),  # the runtime's matter
        ({"pids-limit": "10"}, {"pids": {"limit": 10}}),
        ({"blkio-weight": "10"}, {"blockIO": {"weight": 10}}),
        ({"l3-cache-schema": "L3:0=f"}, {"intelRdt": {"l3CacheSchema": "L3:0=f"}}),
        ({"mem-bw-schema": "MB:0=9"}, {"intelRdt": {"memBwSchema": "MB:0=9"}}),
    ],
)
def test_options(options: dict[str, object], resources: dict[str, Any]) -> None:
    assert resources_from_options(options) == resources


def test_every_option_has_a_member() -> None:
    _, _, options, *_ = COMMANDS["update"]
    for name, *_ in options:
        if name not in ("resources", "time-limit"):
            assert resources_from_options({name: "1"}), name


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "x",
        "k",
        "-",
        "--1",
        "-k",
        "1.5",
        "1kk",
        "1b",
        "1 k",
        "+1",
        "0x10",
        "1e3",
        "٣",
        "²",
    ],
)
def test_no_number(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        resources_from_options({"memory": value})
    assert str(caught.value) == f"--memory {value}: a number expected"


@pytest.mark.parametrize("value", ["1" * 19, "1" * 5000, "8388608t", "-9999999999g"])
def test_too_large(value: str) -> None:
    with pytest.raises(UsageError, match=r"^--memory .*: is too large$"):
        resources_from_options({"memory": value})


@pytest.mark.covers("scrun update")
@pytest.mark.parametrize(
    ("wanted", "present", "found"),
    [
        ({}, {}, []),
        ({"memory": {"limit": 5}}, {}, ["memory.limit=5"]),
        ({"memory": {"limit": 5}}, {"memory": {"limit": 5}}, []),
        ({"memory": {"limit": 5}}, {"memory": {"limit": 6}}, ["memory.limit=5"]),
        ({"memory": {"limit": 5}}, {"memory": None}, ["memory.limit=5"]),
        ({"memory": {"limit": 5}}, {"memory": {"limit": None}}, ["memory.limit=5"]),
        ({"memory": {"limit": 5}}, {"memory": []}, ["memory.limit=5"]),
        ({"memory": {"limit": 5}}, {"memory.limit": 6}, ["memory.limit=5"]),
        ({"cpu": {"cpus": "0"}}, {"cpu": {"cpus": "1"}}, ["cpu.cpus=0"]),
        # as docker sends them
        ({"memory": {"limit": 0, "swap": 0}, "cpu": {"shares": 0, "cpus": ""}}, {}, []),
        ({"blockIO": {"weight": 0, "weightDevice": []}, "devices": None}, {}, []),
        ({"memory": {}, "cpu": None, "memory2": False}, {}, []),
        ({"hugepageLimits": [{"limit": 1}]}, {}, ["hugepageLimits=[{'limit': 1}]"]),
        ({"hugepageLimits": [{"limit": 1}]}, {"hugepageLimits": [{"limit": 1}]}, []),
        ({"unified": {"memory.high": "9"}}, {}, ["unified.memory.high=9"]),
        ({"memory": 7}, {"memory": {"limit": 7}}, ["memory=7"]),
    ],
)
def test_changes(wanted: dict[str, Any], present: dict[str, Any], found: list[str]) -> None:
    assert changes(wanted, present) == found
