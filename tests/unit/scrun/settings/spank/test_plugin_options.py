"""Options of a site's scripts: who gives them, and what counts. spank-lua(8) "SPANK OPTIONS"."""

import pytest

from scrun.core.errors import SpankError
from scrun.settings.slurm.request_sources import named_by
from scrun.settings.spank.plugstack import Option, read_given, variable_of

FLAG = Option("no-memory-overcommit", "Disable memory overcommit")
NEEDS = Option("greet", "Greet somebody", 1, "WHOM")
MAY = Option("x11", "Forward", 2)
ALL = (FLAG, NEEDS, MAY)


def test_names_of_variables() -> None:
    assert variable_of("no-memory-overcommit") == "SCRUN_OPTION_NO_MEMORY_OVERCOMMIT"
    assert variable_of("a.b-c_d") == "SCRUN_OPTION_A_B_C_D"


@pytest.mark.covers("spank-lua options given to srun, salloc, sbatch")
@pytest.mark.parametrize(
    ("environment", "annotations", "values"),
    [
        ({}, {}, {}),
        ({"SCRUN_OPTION_GREET": "world"}, {}, {"greet": "world"}),
        ({"SCRUN_OPTION_GREET": "a b/'\""}, {}, {"greet": "a b/'\""}),
        ({}, {"slurm.option.greet": "world"}, {"greet": "world"}),
        ({"SCRUN_OPTION_GREET": "env"}, {"slurm.option.greet": "/no"}, {"greet": "env"}),
        ({"SCRUN_OPTION_NO_MEMORY_OVERCOMMIT": ""}, {}, {"no-memory-overcommit": None}),
        ({"SCRUN_OPTION_NO_MEMORY_OVERCOMMIT": "No"}, {}, {}),
        ({}, {"slurm.option.no-memory-overcommit": "yes"}, {"no-memory-overcommit": None}),
        ({}, {"slurm.option.no_memory_overcommit": "1"}, {"no-memory-overcommit": None}),
        ({"SCRUN_OPTION_X11": ""}, {}, {"x11": None}),
        ({"SCRUN_OPTION_X11": "first"}, {}, {"x11": "first"}),
    ],
)
def test_who_gives_them(
    environment: dict[str, str], annotations: dict[str, str], values: dict[str, str | None]
) -> None:
    given = read_given(ALL, environment, annotations)
    assert (given.values, given.notes) == (values, ())


@pytest.mark.parametrize(
    ("environment", "annotations", "reason"),
    [
        ({"SCRUN_OPTION_GREET": ""}, {}, "SCRUN_OPTION_GREET: --greet needs a value, WHOM"),
        (
            {"SCRUN_OPTION_NO_MEMORY_OVERCOMMIT": "x"},
            {},
            "SCRUN_OPTION_NO_MEMORY_OVERCOMMIT=x: --no-memory-overcommit takes no value",
        ),
        (
            {},
            {"slurm.option.greet": "$(id)/'"},
            "annotation slurm.option.greet=$(id)/': is not accepted from an image (file names, "
            "quotes, control characters): set SCRUN_OPTION_GREET in the environment of create",
        ),
        (
            {"SCRUN_OPTION_GREET": "x"},
            {"slurm.option.great": "1"},
            "config.json: annotation slurm.option.great: no script of plugstack.conf has such an "
            "option (is it slurm.option.greet?)",
        ),
        (
            {},
            {"slurm.option.nor\nthis": "1"},
            "config.json: annotation slurm.option.nor\\nthis: no script of plugstack.conf has "
            "such an option",
        ),
    ],
)
def test_what_is_refused(
    environment: dict[str, str], annotations: dict[str, str], reason: str
) -> None:
    with pytest.raises(SpankError) as error:
        read_given(ALL, environment, annotations)
    assert str(error.value) == reason


def test_what_no_script_has_and_nobody_wants_is_told() -> None:
    """A variable may be for another cluster; empty, an annotation takes an image's back."""
    annotations = {"slurm.option.nor\nthis": "", "slurm.option.nope": "2"}
    given = read_given(ALL, {"SCRUN_OPTION_NOPE": "1"}, annotations)
    assert given.values == {}
    assert given.notes == (
        "annotation slurm.option.nope is ignored: no script of plugstack.conf has such an option",
        "annotation slurm.option.nor\\nthis is ignored: no script of plugstack.conf has such an "
        "option",
    )
    many = {f"slurm.option.{number}": "1" for number in range(12)}
    notes = read_given((), {}, many, must_be_known=False).notes
    assert notes[-1] == "2 more options are ignored: no script has them either"


def test_they_are_no_requests() -> None:
    assert named_by({"slurm.option.time": "5", "slurm.time": "6"}) == {"SCRUN_TIMELIMIT": "6"}
