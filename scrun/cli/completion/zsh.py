"""The script by which zsh completes scrun's command line.

It may be sourced, or lie as `_scrun` in a directory of `fpath` (zshcompsys(1)).
"""

import shlex

from scrun.cli.completion.words import CARRIED, Choice, Value, choices, in_order, places
from scrun.cli.grammar import COMMANDS

_SCRIPT = """\
#compdef scrun
# zsh completion for scrun, made by `scrun completion zsh`

_scrun_commands() {
    local -a commands=(
@COMMANDS@
    )
    _describe -t commands command commands
}

_scrun_containers() {
    local -a ids=(${(f)"$("$program" $with list --quiet 2>/dev/null)"})
    _wanted containers expl container compadd -a ids
}

_scrun() {
    local curcontext=$curcontext program=${~words[1]} context state state_descr line expl option
    local -a with
    local -A opt_args
    _arguments -C -S \\
@GLOBAL@
        '(-): :_scrun_commands' \\
        '(-)*:: :->rest' && return
    [[ $state == rest ]] || return 1
    # opt_args has them as they were typed, and colons and backslashes escaped once more
    for option in @CARRIED@; do
        [[ -n ${opt_args[$option]} ]] && with+=($option ${~${(Q)${(Q)opt_args[$option]}}})
    done
    case ${(L)words[1]} in
@BRANCHES@
    esac
}

if [[ ${funcstack[1]} == _scrun ]]; then
    _scrun "$@"
else
    compdef _scrun scrun
fi
"""


def script() -> str:
    """Return the script."""
    parts = {
        "COMMANDS": "\n".join(
            f"        {shlex.quote(f'{name}:{text}')}" for name, (text, _, _) in COMMANDS.items()
        ),
        "GLOBAL": "\n".join(f"        {spec} \\" for spec in _specs(None)),
        "CARRIED": " ".join(f"--{name}" for name in CARRIED),
        "BRANCHES": "\n".join(map(_branch, COMMANDS)),
    }
    text = _SCRIPT
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _branch(command: str) -> str:
    """Return the branch for a command."""
    written = COMMANDS[command][1]
    specs = _specs(command)
    for number, (value, place) in enumerate(zip(places(command), written, strict=True), 1):
        count = "*" if place.endswith("...]") else str(number)
        optional = ":" if place[0] == "[" and count != "*" else ""
        action = _action(value)
        specs.append(shlex.quote(f"{count}:{optional}{_escaped(value.name)}:{action}"))
    stop = " -A '-*'" if in_order(command) else ""
    lines = [
        f"    ({command})",
        f"        _arguments -S{stop}",
        *(f"            {s}" for s in specs),
    ]
    return lines[0] + "\n" + " \\\n".join(lines[1:]) + "\n        ;;"


def _specs(command: str | None) -> list[str]:
    return [spec for choice in choices(command) for spec in _spec(choice)]


def _spec(choice: Choice) -> list[str]:
    """Return the specifications of an option, one for each of its names."""
    value = choice.value
    tail = f"[{_escaped(choice.text)}]"
    if value is not None:
        colons = "::" if value.optional else ":"
        tail += f"{colons}{_escaped(value.name)}:{_action(value)}"
    found = []
    for name in choice.names:
        if not choice.used:
            head = "!"  # understood, not offered
        elif choice.many:
            head = "*"
        elif len(choice.names) > 1:
            head = f"({' '.join(choice.names)})"
        else:
            head = ""
        found.append(shlex.quote(f"{head}{name}{_sign(name, value)}{tail}"))
    return found


def _sign(name: str, value: Value | None) -> str:
    """Return how the value may stand: a short name takes it with or without a blank."""
    if value is None:
        return ""
    if value.optional:
        return "=-"
    return "=" if name.startswith("--") else "+"


def _action(value: Value) -> str:
    if value.kind == "words":
        return f"({' '.join(value.words)})"
    return {"ids": "_scrun_containers", "directory": "_directories", "file": "_files"}.get(
        value.kind, " "
    )


def _escaped(text: str) -> str:
    """Escape what separates the parts of a specification."""
    for sign in "\\:[]":
        text = text.replace(sign, f"\\{sign}")
    return text
