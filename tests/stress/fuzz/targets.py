"""What comes from outside, by surface: one function of bytes each, that raises only for a fault.

A target takes what the surface may get, lets the code that reads it do its work, and checks what
has to hold whatever it was: errors are those that users are told, in one line; what was accepted
goes through everything that comes after it; what is written is read again as the same. Hypothesis
(`tests/unit/stress/test_fuzz_*.py`) and atheris (`tools/fuzz`) run the same table.
"""

import base64
import json

from scrun.cli.grammar import COMMANDS
from scrun.protocol import wire
from scrun.protocol.attach import DATA, frame
from scrun.supervisor.wire import frames as shim
from tests.harness.peer import HELLO
from tests.stress.fuzz import documents, frames, outputs, seeds, settings
from tests.stress.fuzz.base import Target

TARGETS: dict[str, Target] = {
    "argv": Target(
        "a command line, its words separated by NUL",
        frames.argv,
        (
            seeds.joined("create", "--bundle", "/b", "--pid-file=p", "c1"),
            seeds.joined("--root", "/r", "--log-format=json", "kill", "-a", "c1", "-9"),
            seeds.joined("exec", "-t", "--env", "A=b", "-u1:2", "c1", "sh", "-c", "true"),
            seeds.joined("update", "--memory", "5g", "--resources=-", "c1"),
        ),
        tuple(COMMANDS),
    ),
    "signal": Target("a signal's name or number", frames.signals, (b"TERM", b"9", b"SIGRTMIN+3")),
    "config": Target(
        "config.json", documents.config, seeds.bundles(), ("process", "linux", "mounts", "null")
    ),
    "process": Target(
        "the file of exec --process",
        documents.process,
        (json.dumps(seeds.FULL["process"]).encode(),),
    ),
    "resources": Target(
        "linux.resources of update",
        documents.resources,
        (json.dumps(seeds.FULL["linux"]["resources"]).encode(), b'{"cpu": {"shares": 7}}'),
    ),
    "settings": Target(
        "scrun.toml", settings.settings, (seeds.SETTINGS,), ("[", "]", "=", '"', "root", "inf")
    ),
    "environment": Target(
        "variables of the caller",
        settings.environment,
        (
            seeds.joined(
                "SCRUN_ENGINE=slurm", "SCRUN_DEBUG=debug2", "SCRUN_ROOT=/r", "SLURM_CONF=/c"
            ),
            seeds.joined("SCRUN_NTASKS=4", "SCRUN_JOB_NUM_NODES=2-4", "SCRUN_GRES=gpu:1", "A=b"),
            seeds.joined("SCRUN_EXCLUSIVE=", "SCRUN_REQ_SWITCH=1", "SCRUN_WAIT4SWITCH=5:00"),
        ),
        ("SCRUN_STDERR_DEBUG=", "SCRUN_LOG_FILE=", "SCRUN_NTASKS_PER_NODE=", "SLURM_CONF="),
    ),
    "slurm-conf": Target(
        "slurm.conf", settings.slurm_conf, (seeds.SLURM,), ("include ", "=", '"', "#", "\\")
    ),
    "plugstack": Target(
        "plugstack.conf",
        settings.plugstack,
        (b"required lua.so failonerror /none/*.lua a=1\ninclude none*.conf # x\nopt x.so\n",),
        ("required", "optional", "include", "lua.so", "failonerror", "*", "#"),
    ),
    "oci-conf": Target(
        "oci.conf", settings.oci_conf, (seeds.OCI,), ("RunTime", "%u", "%@", "$(", "'", '"')
    ),
    "call": Target("a request with a command line", frames.call, (seeds.joined(*seeds.CALL),)),
    "request": Target(
        "any request to a supervisor",
        frames.requests,
        (
            seeds.joined("state", "c1"),
            seeds.joined("kill", "c1", "TERM"),
            seeds.joined("delete", "c1", "1"),
            seeds.joined("ps", "c1", "table", "-ef"),
            seeds.joined("update", "c1", "5:00", '{"memory":{"limit":5}}'),
            seeds.joined("follow", "c1", "output"),
            seeds.joined("create", *seeds.CALL),
            seeds.joined("exec", "1", "22", "/b", "3", "exec", "c1", "true"),
        ),
    ),
    "reply": Target(
        "the answer to create",
        frames.reply,
        (b"\0", b"\1why", b"\xfewait\0\xffscrun: x\n\0\xfdl\0\0", b"\xfc4\0true\0", b"\xfcl\0"),
    ),
    "attach": Target(
        "the frames of attach", frames.attached, (frame(DATA, b"x") + frame(b"w", b"\0" * 4),)
    ),
    "anchor": Target("the lines of an anchor", frames.anchor, (b"TERM\nWINCH\n", b"USR1")),
    "record": Target(
        "state.json", documents.record, (json.dumps(seeds.RECORD).encode(), b'{"id":"c1"}')
    ),
    "salloc": Target("the messages of salloc", outputs.salloc, (seeds.SALLOC,)),
    "srun": Target("the messages of srun", outputs.srun, (seeds.SRUN,)),
    "squeue": Target(
        "the answers of squeue and sacct",
        outputs.squeue,
        (
            b"PENDING|1895268178|Resources\n",
            b"COMPLETING  2026-01-01T00:00:00 None",
            b"CANCELLED by 1000\n",
        ),
    ),
    "version": Target("what salloc --version prints", outputs.version, (b"slurm-wlm 22.05.8\n",)),
    "inspect": Target(
        "what a step on the nodes prints",
        outputs.inspected,
        (
            b"0: begin node1\n0: "
            + base64.b64encode(seeds.BESIDE[0] + b"status 0\n")
            + b"\n0: end\n",
        ),
    ),
    "beside": Target("what scripts beside a container print", outputs.beside, seeds.BESIDE),
    "runtime": Target(
        "the state and the log of an OCI runtime",
        outputs.runtime,
        (b'{"pid": 42, "status": "running"}', b'{"level":"error","msg":"exec: no"}\n'),
    ),
    "shim": Target(
        "the frames of a shim",
        frames.shim,
        (
            shim.frame(shim.EVENT, 0, b'{"event": "code", "python": "a70d0d0a", "waited": 0.5}')
            + shim.frame(shim.EVENT, 0, json.dumps(HELLO).encode()),
            shim.frame(shim.REPLY, 0, b'{"call": 1, "status": 0, "text": "x"}')
            + shim.frame(shim.EVENT, 0, b'{"event": "ended", "target": "c", "status": 256}'),
            shim.frame(shim.EVENT, 0, b'{"event": "ended", "target": "c", "status": 510}'),
            shim.frame(shim.DATA, 1, b"shown") + shim.frame(shim.END, 1),
            shim.frame(shim.CREDIT, 2, b"\0\0\1\0") + shim.frame(shim.CLOSED, 2),
        ),
        ("\1", "\2", "\3", "\4", "\5", "event", "status", "code"),
    ),
    "node": Target(
        "the frames that arrive at a shim, plain and sealed",
        frames.node,
        (
            shim.frame(shim.CALL, 0, b'{"call": 1, "do": "mount"}')
            + shim.frame(shim.DATA, 1, b"typed"),
            shim.frame(shim.CREDIT, 2, b"\0\0\1\0") + shim.frame(shim.QUIET),
            b"\0\x05\0\1",
            b"\1\0\0\x40",
            b"\2\x40\0\x40",
        ),
        ("\1", "\4", "\5", "\6", "\x09"),
    ),
    "door": Target(
        "what is said at a port by who does not know the secret",
        frames.door,
        (
            b"",
            b"GET / HTTP/1.0\r\n\r\n",
            b"x" * 32 + b"\n" + b"y" * 31 + b"\n\n",
            shim.knock(b"another secret", b"r" * 16) + b"p" * 32,
            shim.knock(frames.SECRET, b"r" * 16) + b"p" * 32,
        ),
    ),
    "worker": Target(
        "the frames of the process of a scrun.lua",
        frames.worker,
        (
            wire.frame([b"log", b"info", b"x"]) + wire.frame([b"command", b"true"]),
            wire.frame([b"done", b"/b", b"/r"]) + wire.frame([b"failed", b"why", b""]),
        ),
    ),
}
"""By name."""
