"""Right input, to begin with, and what is right nowhere."""

import json
from typing import Any

from tests import CHECKOUT

FULL: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "process": {
        "terminal": False,
        "consoleSize": {"height": 24, "width": 80},
        "user": {"uid": 1, "gid": 2, "umask": 18, "additionalGids": [3]},
        "args": ["/bin/sh", "-c", "true"],
        "env": ["PATH=/bin", "SCRUN_PARTITION=debug", "NVIDIA_VISIBLE_DEVICES=0,1"],
        "cwd": "/",
        "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "ambient": []},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 512}],
        "apparmorProfile": "a",
        "oomScoreAdj": 100,
        "selinuxLabel": "l",
        "noNewPrivileges": True,
        "ioPriority": {"class": "IOPRIO_CLASS_IDLE", "priority": 4},
    },
    "root": {"path": "rootfs", "readonly": True},
    "hostname": "host",
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
        {"destination": "/data", "type": "bind", "source": "/etc", "options": ["rbind", "uid=1"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs"},
        {"destination": "/dev/shm", "type": "bind", "source": "/dev/shm", "options": ["bind"],
         "uidMappings": [{"containerID": 0, "hostID": 1, "size": 1}]},
    ],
    "hooks": {"prestart": [{"path": "/bin/true", "args": ["a"], "env": ["A=b"], "timeout": 5}]},
    "annotations": {"SCRUN_NTASKS": "1", "slurm.partition": "debug", "org.example": "x"},
    "linux": {
        "namespaces": [{"type": "pid"}, {"type": "network", "path": "/proc/1/ns/net"}],
        "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3, "uid": 0}],
        "cgroupsPath": "/a",
        "resources": {
            "devices": [{"allow": False, "access": "rwm"}],
            "memory": {"limit": 104857600},
            "cpu": {"quota": 150000, "period": 100000, "shares": 1024},
            "pids": {"limit": 100},
        },
        "sysctl": {"net.ipv4.ping_group_range": "0 0", "kernel.shm_rmid_forced": "1"},
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "listenerPath": "/s",
                    "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]},
        "maskedPaths": ["/proc/kcore"],
        "mountLabel": "m",
        "intelRdt": {"closID": "c"},
    },
}  # fmt: skip
"""A config.json with most of what there is."""


RECORD = {
    "id": "c1", "status": "running", "pid": 4711, "bundle": "/b", "oci_version": "1.1.0",
    "engine": "slurm", "job_id": "123", "owns_job": True, "staged": "/s", "moved": None,
    "annotations": {"org.scrun.reason": "exited"}, "created": "2026-01-01T00:00:00Z",
    "rootfs": "/r", "pod": "", "engine_settings": {"slurm_conf": "/etc/slurm/slurm.conf"},
}  # fmt: skip


SETTINGS = b"""engine = "slurm"
root = "/run/x"
group = "pod"
idle_timeout = 5.0
[log]
level = "debug"
file = "/var/log/x"
[slurm]
conf = "/etc/slurm/slurm.conf"
release_timeout = 10
[slurm.defaults]
partition = "long"
exclusive = true
[local]
runtime = "crun"
[runtime]
pause = "crun pause %u.%j.%s.%t.%n"
resume = "crun resume %u.%j"
[staging]
scratch = "/scratch/%u"
host_only = ["/run/x"]
timeout = inf
[lua]
version = "5.4"
memory = 100
"""


OCI = b"""RunTimeQuery="crun --root=/r state %u.%j.%s.%t.%n" # c
RunTimeKill="crun kill -a %n.%u.%j TERM"
RunTimeDelete="crun delete \\
 --force '%n' \\"%u\\""
RunTimeRun="exec crun run --bundle=%b --pid-file \\"%e\\" %n $(id -u) %@"
EnvExclude="^(SLURM_CONF)="
CreateEnvFile=null
DisableHooks=prestart,poststop
"""


SLURM = b"""ClusterName=c1 # a
SlurmctldHost=h
include /dev/shm/none-%c.conf
NodeName=n[1-2] CPUs=64 \\
  State=UNKNOWN
PartitionName="debug" Nodes=ALL
"""


SRUN = b"""srun: launching StepId=12.0 on host node1, 2 tasks: [0-1]
srun: launching StepId=12.0 on host node2, 2 tasks: 2,3
srun: Node node1, 2 tasks started
srun: Node node2, 2 tasks started
srun: Received task exit notification for 2 tasks of StepId=12.0 (status=0x0009).
srun: error: node1: tasks 0-1: Killed
srun: Received task exit notification for 2 tasks of StepId=12.0 (status=0x0300).
srun: error: node2: tasks 2-3: Exited with exit code 3
srun: error: Task launch for StepId=12.0 failed on node node1: Unspecified error
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
"""


SALLOC = b"""salloc: Pending job allocation 3546
salloc: job 3546 queued and waiting for resources
salloc: Granted job allocation 3546
salloc: error: Node failure on node1
salloc: Job 3546 has exceeded its time limit and its allocation has been revoked.
salloc: error: Job submit/allocate failed: Invalid partition name specified
"""


BESIDE = (
    b"host 1b4e28ba pid:[4026531836]\npids\n1\n42\ntable\nUID PID CMD\nroot 42 sh\nroot 43 x\n",
    b"units 100 4096 1.00\n"
    b"42 (a) b\n c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24\n",
)


CALL = ("4711", "22", "/b", "4", "create", "--bundle", "/b", "c1", "PATH=/bin", "A=b")


ODD = (
    b"", b"\0", b"\xff", b"\n" * 5000, b"a" * 100_000, b"9" * 100_000, b"[" * 100_000,
    b'{"a":' * 50_000, b"[]," * 400_000, b"{" + b'"a":1,' * 300_000, b"a." * 50_000 + b"a=1",
    b'{"a":' + b"1" * 5000 + b"}", b"a=" + b"1" * 5000, b'a="\\u0000"', b"\\\n" * 50_000,
    b"(" * 50_000, b"'\"" * 50_000, b"0-999999," * 7000, b"a \\" * 50_000, b" " * 100_000,
    b"\xed\xa0\x80", "\u0661\u2028\x85".encode(),
)  # fmt: skip
"""What is right nowhere, or only in part."""


def bundles() -> tuple[bytes, ...]:
    """Every config.json that the tests have."""
    found = sorted((CHECKOUT / "tests" / "data" / "bundles").glob("*.json"))
    documents = [json.loads(path.read_bytes()) for path in found]
    configs = [json.dumps(one.get("config", one)).encode() for one in documents]
    return (json.dumps(FULL).encode(), *configs)


def joined(*words: str) -> bytes:
    """Words, each ended by NUL but the last."""
    return "\0".join(words).encode()
