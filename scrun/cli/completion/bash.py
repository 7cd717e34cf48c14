"""The script by which bash completes scrun's command line.

It needs bash 4 and not the package bash-completion. bash breaks words at `=`, so that
`--root=/r` comes as three of them; where that is switched off it comes as one.
"""

import shlex

from scrun.cli.completion.words import CARRIED, Value, choices, in_order, places
from scrun.cli.grammar import COMMANDS

_SCRIPT = """\
# bash completion for scrun, made by `scrun completion bash`

_scrun_value() { # command option: what the option takes, nothing for a flag
    kind=
    case "$1 $2" in
@VALUES@
    *) return 1 ;;
    esac
}

_scrun_options() { # command: its options
    case $1 in
@OPTIONS@
    esac
}

_scrun_operand() { # command number: what stands there, counted from 0
    kind=
    case "$1 $2" in
@OPERANDS@
    esac
}

_scrun_plain() { # word: as the shell would pass it on, into $plain; it is never evaluated
    case $1 in
    \\"*\\" | \\'*\\') plain=${1:1:-1} ;;
    *) IFS= read plain <<<"${1/#\\~/$HOME}" ;; # without -r: it takes the backslashes out
    esac
}

_scrun_reply() { # kind word prefix: offer what begins with the word
    local -a found=()
    case $1 in
    directory | file)
        local action=-f
        [[ $1 == directory ]] && action=-d
        mapfile -t found < <(compgen "$action" -- "$2")
        compopt -o filenames 2>/dev/null
        ;;
    ids)
        local ids
        ids=$("$program" "${with[@]}" list --quiet 2>/dev/null)
        mapfile -t found < <(compgen -W "$ids" -- "$2")
        ;;
    'words '*) mapfile -t found < <(compgen -W "${1#words }" -- "$2") ;;
    esac
    COMPREPLY=("${found[@]/#/${3-}}")
}

_scrun() {
    local kind='' awaited='' option='' command='' plain='' program word
    local -i i operands=0 over=0
    local -a with=()
    local cur=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    _scrun_plain "${COMP_WORDS[0]}"
    program=$plain

    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == = ]]; then # what follows goes with what was before
            awaited=none
            [[ -n $option ]] && awaited=${kind:-none}
        elif [[ -n $awaited ]]; then
            _scrun_plain "$word"
            [[ -z $command && ( @CARRIED@ ) ]] && with+=("$option" "$plain")
            awaited='' option=''
        elif [[ $word == -- ]] && ((!over)); then
            over=1
        elif [[ $word == -?* ]] && ((!over)); then
            option=${word%%=*}
            [[ $option == -[!-]?* ]] && _scrun_value "$command" "-$option" && option=-$option
            _scrun_value "$command" "$option"
            if [[ $word == *=* ]]; then
                _scrun_plain "${word#*=}"
                [[ -z $command && ( @CARRIED@ ) ]] && with+=("$option" "$plain")
            elif [[ $kind == optional* ]]; then
                kind=${kind#optional }
            else
                awaited=$kind
            fi
        elif [[ -z $command ]]; then
            command=${word,,} over=0 option=''
        else
            operands+=1 option=''
            case $command in @IN_ORDER@) over=1 ;; esac
        fi
    done

    if [[ $cur == = && -n $option ]]; then
        awaited=${kind:-none} cur=
    fi
    if [[ -n $awaited ]]; then
        _scrun_reply "${awaited#optional }" "$cur"
    elif [[ $cur == --*=* ]] && ((!over)); then
        _scrun_value "$command" "${cur%%=*}"
        _scrun_reply "${kind#optional }" "${cur#*=}" "${cur%%=*}="
    elif [[ $cur == -* ]] && ((!over)); then
        _scrun_reply "words $(_scrun_options "$command")" "$cur"
    elif [[ -z $command ]]; then
        _scrun_reply 'words @COMMANDS@' "$cur"
    else
        _scrun_operand "$command" "$operands"
        _scrun_reply "$kind" "$cur"
    fi
}

complete -F _scrun scrun
"""


def script() -> str:
    """Return the script."""
    ordered = [command for command in COMMANDS if in_order(command)]
    parts = {
        "VALUES": "\n".join(_values()),
        "OPTIONS": "\n".join(
            f"    {shlex.quote(command or '')}) echo {shlex.quote(_names(command))} ;;"
            for command in (None, *COMMANDS)
        ),
        "OPERANDS": "\n".join(
            f"    '{command} {number}') kind={shlex.quote(_kind(value))} ;;"
            for command in COMMANDS
            for number, value in enumerate(places(command))
            if value.kind != "none"
        ),
        "CARRIED": " || ".join(f"$option == --{name}" for name in CARRIED),
        "IN_ORDER": " | ".join(ordered),
        "COMMANDS": " ".join(COMMANDS),
    }
    text = _SCRIPT
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _values() -> list[str]:
    """Return a branch for each kind of value, with all options that take it."""
    found: dict[str, list[str]] = {}
    for command in (None, *COMMANDS):
        for choice in choices(command):
            if choice.value is not None:
                patterns = [f"'{command or ''} {name}'" for name in choice.names]
                found.setdefault(_kind(choice.value), []).extend(patterns)
    return [
        f"    {' | '.join(patterns)}) kind={shlex.quote(kind)} ;;"
        for kind, patterns in found.items()
    ]


def _kind(value: Value) -> str:
    kind = f"words {' '.join(value.words)}" if value.kind == "words" else value.kind
    return f"optional {kind}" if value.optional else kind


def _names(command: str | None) -> str:
    return " ".join(name for choice in choices(command) if choice.used for name in choice.names)
