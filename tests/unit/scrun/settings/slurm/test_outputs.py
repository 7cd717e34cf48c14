import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.oci.config import LONGEST_WORD
from scrun.settings.slurm.outputs import ScriptFacts, output_variables
from scrun.settings.slurm.requests import TABLE
from tests import CHECKOUT
from tests.harness.program import run_program

# scrun(1), OUTPUT ENVIRONMENT VARIABLES, in its order
MANUAL = """
    OCI_VERSION CONTAINER_ID PID BUNDLE SUBMISSION_BUNDLE PID_FILE SOCKET SPOOL_DIR
    SUBMISSION_CONFIG_FILE USER USER_ID GROUP GROUP_ID ROOT ROOTFS_PATH SUBMISSION_ROOTFS_PATH
    LOG_FILE LOG_FORMAT
"""

TOLD = ScriptFacts(
    oci_version="1.0.2",
    container_id="c1",
    pid=4711,
    bundle="/scratch/c1",
    submission_bundle="/home/u/b",
    annotations={},
    pid_file="/run/c1.pid",
    socket="/run/r/@user",
    spool_dir="/run/r/c1",
    submission_config_file="/home/u/b/config.json",
    user="u",
    user_id=1000,
    group="g",
    group_id=100,
    root="/run/r",
    rootfs_path="/scratch/c1/rootfs",
    submission_rootfs_path="/home/u/b/rootfs",
    log_file="/tmp/log",
    log_format="json",
)


def with_annotations(**annotations: str) -> dict[str, str]:
    return output_variables(msgspec.structs.replace(TOLD, annotations=annotations))


@pytest.mark.covers("scrun(1) OUTPUT ENVIRONMENT VARIABLES")
def test_the_manual_s_variables() -> None:
    variables = output_variables(TOLD)
    assert list(variables) == [f"SCRUN_{name}" for name in MANUAL.split()]
    assert variables["SCRUN_CONTAINER_ID"] == "c1"
    assert variables["SCRUN_PID"] == "4711"
    assert variables["SCRUN_BUNDLE"] == "/scratch/c1"
    assert variables["SCRUN_SUBMISSION_BUNDLE"] == "/home/u/b"
    assert variables["SCRUN_USER_ID"] == "1000"
    assert variables["SCRUN_GROUP"] == "g"
    assert variables["SCRUN_LOG_FORMAT"] == "json"


def test_none_of_them_is_a_request() -> None:
    """A scrun that a script calls must not ask for something because of them."""
    assert not set(output_variables(TOLD)) & set(TABLE)


def test_what_there_is_not_has_no_variable() -> None:
    variables = output_variables(msgspec.structs.replace(TOLD, pid_file=None, log_file=None))
    assert not {"SCRUN_PID_FILE", "SCRUN_LOG_FILE"} & set(variables)


@pytest.mark.parametrize(
    ("key", "value", "variable"),
    [
        ("a", "b", "SCRUN_ANNOTATION_a"),
        ("org.example.test", "yes", "SCRUN_ANNOTATION_org.example.test"),
        ("io.podman/x-Y", "a=b", "SCRUN_ANNOTATION_io.podman/x-Y"),
        ("ä b", "line\nbreak", "SCRUN_ANNOTATION_ä b"),
        ("empty", "", "SCRUN_ANNOTATION_empty"),
        ("SCRUN_PARTITION", "gpu", "SCRUN_ANNOTATION_SCRUN_PARTITION"),
    ],
)
def test_annotations_keep_their_keys(key: str, value: str, variable: str) -> None:
    assert with_annotations(**{key: value})[variable] == value


def test_annotations_stand_where_the_manual_has_them() -> None:
    names = list(with_annotations(a="b"))
    assert names[names.index("SCRUN_ANNOTATION_a") - 1] == "SCRUN_SUBMISSION_BUNDLE"


@pytest.mark.parametrize(("key", "value"), [("a=b", "c"), ("a\0", "b"), ("a", "\0")])
def test_annotations_that_no_variable_can_be(key: str, value: str) -> None:
    assert with_annotations(**{key: value}) == output_variables(TOLD)


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
)
def test_a_command_can_be_started_with_any(annotations: dict[str, str]) -> None:
    variables = with_annotations(**annotations)
    encoded = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in variables.items()]
    assert all(b"\0" not in entry for entry in encoded)
    assert all("=" not in name for name in variables)


def test_it_is_light() -> None:
    program = "import sys, scrun.settings.slurm.outputs; print('trio' in sys.modules)"
    done = run_program([sys.executable, "-c", program], check=True, cwd=CHECKOUT)
    assert done.stdout == "False\n"


def test_an_annotation_that_no_command_can_be_given() -> None:
    """With it none could be started at all."""
    longest = "x" * (LONGEST_WORD - len("SCRUN_ANNOTATION_a="))
    variables = with_annotations(a=longest, b=longest + "x", c="x")
    assert {"SCRUN_ANNOTATION_a", "SCRUN_ANNOTATION_c"} < set(variables)
    assert "SCRUN_ANNOTATION_b" not in variables
    subprocess.run(["true"], check=True, env=variables)
