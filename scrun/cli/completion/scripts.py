"""The scripts by which shells complete scrun's command line: each asks `scrun __complete`.

That gets the words up to the cursor, as the shell would pass them on. Its first line says what
stands there: the shell lists files and directories itself, words follow, one in a line.
"""

_BASH = r"""# bash completion for scrun, made by `scrun completion bash`

_scrun() {
    local word kind prefix='' joined='' cur=${COMP_WORDS[COMP_CWORD]}
    local -a words=() found=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        case $word in # as the shell would pass it on; it is never evaluated
        \"*\" | \'*\') word=${word:1:-1} ;;
        *) IFS= read word <<<"$word" ;; # without -r: it takes the backslashes out
        esac
        # bash breaks words at `=`, which is a word of its own
        if [[ $joined == = ]]; then
            words[-1]+=$word joined=value
        elif [[ $word == = ]]; then
            words[-1]+== joined==
        else
            words+=("$word") joined=''
        fi
    done
    mapfile -t found < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
    kind=${found[0]-}
    found=("${found[@]:1}")
    found=("${found[@]%%$'\t'*}")
    [[ $joined ]] && found=("${found[@]#*=}")
    if [[ $kind == file || $kind == directory ]]; then
        [[ $joined == = ]] && cur=''
        [[ ! $joined && $cur == --*=* ]] && prefix=${cur%%=*}=
        mapfile -t found < <(compgen "-${kind:0:1}" -- "${cur#"$prefix"}")
        compopt -o filenames 2>/dev/null
    fi
    COMPREPLY=("${found[@]/#/$prefix}")
}

complete -F _scrun scrun
"""

_ZSH = r"""#compdef scrun
# zsh completion for scrun, made by `scrun completion zsh`

_scrun() {
    local -a found=(${(f)"$(${~words[1]} __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
        2>/dev/null)"})
    local -a values=(${found[2,-1]%%$'\t'*}) shown=(${found[2,-1]/$'\t'/ -- })
    case $found[1] in
    (words) compadd -l -d shown -a values ;;
    (file) compset -P '--*='; _files ;;
    (directory) compset -P '--*='; _directories ;;
    esac
}

if [[ ${funcstack[1]} == _scrun ]]; then
    _scrun "$@"
else
    compdef _scrun scrun
fi
"""

_FISH = r"""# fish completion for scrun, made by `scrun completion fish`

function __scrun_complete
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l word (commandline --current-token --cut-at-cursor)
    set -l found (command $words[1] __complete $words[2..-1] "$word" 2>/dev/null)
    set -l prefix (string match -r -- '^--[^=]*=' "$word")
    set word (string replace -- "$prefix" '' "$word")
    switch "$found[1]"
        case words
            string join \n -- $found[2..-1]
        case file
            printf '%s\n' "$prefix"(__fish_complete_path $word)
        case directory
            printf '%s\n' "$prefix"(__fish_complete_directories $word)
    end
end

complete -c scrun -e
complete -c scrun -f -a '(__scrun_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""By the name of the shell. zsh's may lie as `_scrun` in a directory of `fpath` (zshcompsys(1));
bash's needs bash 4 and not the package bash-completion."""
