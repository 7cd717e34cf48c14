"""What people and sites set."""

import os
import shlex

from scrun.core.errors import SettingsError
from scrun.settings.file import sources
from scrun.settings.file.load import RuntimeSettings, load
from scrun.settings.oci_conf.commands import (
    in_place_of_the_shell,
    node_runtime,
    portable,
    signalled,
)
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.settings.oci_conf.patterns import substitute
from scrun.settings.slurm.requests import from_environment, salloc_arguments, srun_arguments
from scrun.settings.slurm_conf import read_slurm_conf
from scrun.settings.spank.plugstack import find_scripts, read_plugstack
from scrun.supervisor.engines.slurm.layout import OneNode, check, layout_within
from tests.stress.fuzz.base import RELEASES, check_error, written


def settings(data: bytes) -> None:
    path = written("scrun.toml", data)
    try:
        found = load({}, path)
    except SettingsError as error:
        check_error(error, begins=path)
        return
    for seconds in (found.idle_timeout, found.staging.timeout, found.slurm.release_timeout):
        assert seconds >= 0  # which is not true of what is not a number
    for name in (found.root, found.slurm.conf, found.log.file, found.staging.scratch):
        if name is not None:
            os.path.lexists(name)


def environment(data: bytes) -> None:
    """The caller's variables, separated by NUL."""
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0"))
    found = {name: value for name, _, value in pairs if name and name != "SCRUN_CONFIG"}
    sources.real_uid(found, "/nowhere")
    try:
        load(found, written("empty.toml", b""))
        for release in RELEASES:
            words = salloc_arguments(from_environment(found), release)
            words += srun_arguments(from_environment(found), release)
            assert all(word.startswith("-") for word in words)
        check({**found, "SLURM_JOB_NUM_NODES": ""}, OneNode(1, "22.05"))
        layout = layout_within(found, found, OneNode(1, "22.05"))
        assert layout.tasks >= 1
    except SettingsError as error:
        check_error(error)


def slurm_conf(data: bytes) -> None:
    """slurm.conf, that may include itself."""
    path = written("slurm.conf", data)
    try:
        found = read_slurm_conf(path)
    except SettingsError as error:
        check_error(error)
        return
    assert all(key == key.lower() for key in found)


def plugstack(data: bytes) -> None:
    """plugstack.conf, that may include itself."""
    path = written("plugstack.conf", data)
    try:
        lines = read_plugstack(path)
        find_scripts(lines)
    except SettingsError as error:
        check_error(error)
        return
    assert all(line.pattern.startswith("/") for line in lines)


def oci_conf(data: bytes) -> None:
    """oci.conf, and what is filled into its commands."""
    try:
        conf = parse_oci_conf(data.decode(errors="surrogateescape"), "oci.conf")
        patterns = node_runtime(conf, RuntimeSettings())
    except SettingsError as error:
        check_error(error, begins="oci.conf")
        return
    evil = "/b/'; touch x \"$(y)`z`\n"
    values = {**dict.fromkeys("bejmnprstuUf", evil), "@": [evil, "", "a b"]}
    signal, run = signalled(patterns.kill, "USR1"), in_place_of_the_shell(conf.run_time_run or "")
    for pattern in (patterns.state, patterns.exec, run, portable(signal)):
        try:
            command = substitute(pattern, values)
        except SettingsError as error:
            check_error(error)
            continue
        plain = pattern.replace("%%", "")
        if not set(plain) & set("$`#<\\\"'") and "%" in plain:
            assert evil in "".join(shlex.split(command)), command
