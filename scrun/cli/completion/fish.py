"""The script by which fish completes scrun's command line."""

from scrun.cli.completion.words import CARRIED, Choice, Value, choices, in_order, places
from scrun.cli.grammar import COMMANDS

_SCRIPT = """\
# fish completion for scrun, made by `scrun completion fish`

function __scrun_takes --description 'Whether an option of a command takes the next word'
    switch "$argv[1] $argv[2]"
        case @TAKING@
            return 0
    end
    return 1
end

# Into __scrun_command, __scrun_operands (a number) and __scrun_with (options for `list`).
function __scrun_walk --description 'Read the line as far as the cursor'
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -g __scrun_program $words[1]
    set -g __scrun_command ''
    set -g __scrun_operands 0
    set -g __scrun_with
    set -l option ''
    for word in $words[2..-1]
        if test -n "$option"
            if test -z "$__scrun_command"; and contains -- $option @CARRIED@
                set -a __scrun_with $option $word
            end
            set option ''
        else if string match -q -- '--*=*' $word
            set -l halves (string split -m 1 = -- $word)
            if test -z "$__scrun_command"; and contains -- $halves[1] @CARRIED@
                set -a __scrun_with $halves
            end
        else if string match -q -r -- '^-.' $word
            if __scrun_takes "$__scrun_command" $word
                set option $word
            else if __scrun_takes "$__scrun_command" -$word
                set option -$word
            end
        else if test -z "$__scrun_command"
            set __scrun_command (string lower -- $word)
        else
            set __scrun_operands (math $__scrun_operands + 1)
        end
    end
end

function __scrun_in --description 'Whether this is the command; nothing is none yet'
    __scrun_walk
    test "$__scrun_command" = "$argv[1]"
end

function __scrun_at --description 'Whether so many operands of this command are there'
    __scrun_in $argv[1]
    and test $__scrun_operands -eq $argv[2]
end

function __scrun_containers
    __scrun_walk
    command $__scrun_program $__scrun_with list --quiet 2>/dev/null
end

complete -c scrun -e
complete -c scrun -f
@COMPLETE@
"""


def script() -> str:
    """Return the script."""
    taking = [
        _quoted(f"{command or ''} {name}")
        for command in (None, *COMMANDS)
        for choice in choices(command)
        if choice.value is not None and not choice.value.optional
        for name in choice.names
    ]
    lines = [
        f"complete -c scrun -n '__scrun_in \"\"' -a {name} -d {_quoted(text)}"
        for name, (text, _, _) in COMMANDS.items()
    ]
    for command in (None, *COMMANDS):
        condition = f'__scrun_in "{command or ""}"'
        if command is not None and in_order(command):
            condition = f"__scrun_at {command} 0"
        lines += [_option(condition, choice) for choice in choices(command) if choice.used]
    for command in COMMANDS:
        for number, value in enumerate(places(command)):
            if value.kind != "none":
                condition = f"__scrun_at {command} {number}"
                lines.append(f"complete -c scrun -n '{condition}' {_arguments(value)}")
    parts = {
        "TAKING": " ".join(taking),
        "CARRIED": " ".join(f"--{name}" for name in CARRIED),
        "COMPLETE": "\n".join(lines),
    }
    text = _SCRIPT
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _option(condition: str, choice: Choice) -> str:
    long, *letters = choice.names
    short = "".join(f" -s {letter[1:]}" for letter in letters)
    value = ""
    if choice.value is not None:
        # without -r an option's value is only taken after `=`, which an optional one needs
        needed = "" if choice.value.optional else " -r"
        value = f"{needed} {_arguments(choice.value)}".rstrip()
    named = f"-l {long[2:]}{short}{value}"
    return f"complete -c scrun -n '{condition}' {named} -d {_quoted(choice.text)}"


def _arguments(value: Value) -> str:
    match value.kind:
        case "words":
            return f"-f -a {_quoted(' '.join(value.words))}"
        case "ids":
            return "-f -a '(__scrun_containers)'"
        case "directory":
            return "-f -a '(__fish_complete_directories (commandline -ct))'"
        case "file":
            return "-F"
    return "-f"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
