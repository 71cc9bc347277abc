"""The command that prints a shell script, which completes the other commands at the TAB key.

The script has a table of words, so a completion does not start Python. The options of an experiment are divided into
groups, which many experiments share.
"""

import inspect
import shlex
import typing
from typing import Any, Literal

from tyro.conf import Positional

from plmjax.commands import cli, command_line, help

Table = dict[str, list[str]]
"""Dict from a question of the script, such as `options pretrain`, to the words that answer it."""
COMMON = "common"
"""Name in the table of the group of options that all experiments have, for an experiment outside plmjax."""


def completion(shell: Positional[Literal["bash", "zsh", "fish"]]) -> None:
    """Print a script that completes commands at the TAB key.

    bash: plmjax completion bash > ~/.local/share/bash-completion/completions/plmjax

    zsh: plmjax completion zsh > "${fpath[1]}/_plmjax"

    fish: plmjax completion fish > ~/.config/fish/completions/plmjax.fish

    Write it again after an update of plmjax.

    Args:
        shell: Shell that reads the script.
    """
    answers = table()
    if shell == "fish":
        cases = "\n".join(f"        case {shlex.quote(key)}\n            set -g __plmjax_reply {' '.join(words)}"
                          for key, words in answers.items())  # fmt: skip
        print(FISH.replace("@cases@", cases))
    else:
        cases = "\n".join(
            f"    {shlex.quote(key)}) _plmjax_reply='{' '.join(words)}' ;;" for key, words in answers.items()
        )
        start, end = {"bash": ("", BASH), "zsh": ("#compdef plmjax\n", ZSH)}[shell]
        print((start + POSIX + end).replace("@cases@", cases))


def table() -> Table:
    """Return the table of all commands, options and experiments."""
    found: Table = {"commands": list(dict.fromkeys(name.split()[0] for name in cli.VERBS))}
    for group in cli.GROUPS:
        found[f"commands {group}"] = [name.split()[1] for name in cli.VERBS if name.startswith(f"{group} ")]
    for name in cli.VERBS:
        verb = cli.verb(name)
        found[f"options {name}"] = ["--help", *(f"--{one.strip('_')}" for one in command_line.option_names(verb))]
        for parameter in inspect.signature(verb).parameters.values():
            if values := _choices(parameter.annotation):
                positional = Positional in getattr(parameter.annotation, "__metadata__", ())
                option = "" if positional else f" --{parameter.name.strip('_')}"
                found[f"values {name}{option}"] = values
        if name in cli.FURTHER:
            found[f"values {name} --help"] = [help.ALL]
    return found | _experiments()


def _choices(kind: Any) -> list[str]:
    """Return the words that an option accepts, if its type lists them."""
    if typing.get_origin(kind) is Literal:
        return list(typing.get_args(kind))
    return [word for member in typing.get_args(kind) for word in _choices(member)]


def _experiments() -> Table:
    """Return the table of plmjax's experiments: their names, the option groups of each, and the options of a group."""
    from plmjax import experiment as experiments
    from plmjax.experiment import catalogue
    from plmjax.experiment.override import choices

    groups: dict[tuple[str, ...], str] = {}
    found: Table = {}
    common: set[str] | None = None
    for name in catalogue.names():
        for reference in catalogue.Listed.read(name).lines:
            run = experiments.load(reference)
            chosen = choices(run)
            options = [*chosen, *experiments.options(run)]
            for option, value in chosen.items():
                found[f"values {option}"] = sorted(value.choices())
            common = {*options} if common is None else common & {*options}
            parts: dict[str, list[str]] = {}
            for option in options:
                parts.setdefault(option.partition(".")[0], []).append(option)
            found[f"experiment {reference}"] = [
                groups.setdefault(tuple(part), str(len(groups))) for part in parts.values()
            ]
    found["experiments"] = [key.partition(" ")[2] for key in found if key.startswith("experiment ")]
    groups[tuple(sorted(common or ()))] = COMMON
    for name in cli.OF_EXPERIMENTS:
        found[f"takes {name}"] = ["experiments"]
    return found | {f"group {number}": list(options) for options, number in groups.items()}


POSIX = """\
_plmjax_ask() {
    _plmjax_reply=
    case "$1" in
@cases@
    esac
}
# Set _plmjax_reply to the words that fit: $1 is the word to complete, the others stand before it, after plmjax.
_plmjax_candidates() {
    if [ -n "${ZSH_VERSION-}" ]; then emulate -L sh; fi
    local current="$1" command group options last
    shift
    if [ $# -eq 0 ]; then _plmjax_ask commands; return; fi
    command="$1"; shift
    _plmjax_ask "commands $command"
    if [ -n "$_plmjax_reply" ]; then
        if [ $# -eq 0 ]; then return; fi
        command="$command $1"; shift
    fi
    last=
    for last; do :; done
    case "$current" in
    -*)
        _plmjax_ask "options $command"
        options="$_plmjax_reply"
        _plmjax_ask "takes $command"
        if [ -n "$_plmjax_reply" ] && [ $# -gt 0 ]; then
            _plmjax_ask "experiment $1"
            for group in ${_plmjax_reply:-common}; do
                _plmjax_ask "group $group"
                options="$options $_plmjax_reply"
            done
        fi
        _plmjax_reply="$options"
        ;;
    *)
        if [ $# -eq 0 ]; then
            _plmjax_ask "takes $command"
            if [ -n "$_plmjax_reply" ]; then _plmjax_ask experiments; else _plmjax_ask "values $command"; fi
        else
            _plmjax_ask "values $command $last"
            if [ -z "$_plmjax_reply" ]; then _plmjax_ask "values $last"; fi
        fi
        ;;
    esac
}
"""
BASH = """\
_plmjax() {
    local line="${COMP_LINE:0:COMP_POINT}" current= words
    read -r -a words <<< "$line"
    case "$line" in
    *" ") ;;
    *) current="${words[${#words[@]}-1]}"; words=("${words[@]:0:${#words[@]}-1}") ;;
    esac
    _plmjax_candidates "$current" "${words[@]:1}"
    COMPREPLY=($(compgen -W "$_plmjax_reply" -- "$current"))
    # bash replaces only what follows a colon.
    case "$current:$COMP_WORDBREAKS" in
    *:*:*:*) COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}") ;;
    esac
}
complete -o default -F _plmjax plmjax"""
ZSH = """\
_plmjax() {
    _plmjax_candidates "${words[CURRENT]}" "${(@)words[2,CURRENT-1]}"
    if [[ -n "$_plmjax_reply" ]]; then compadd -- ${=_plmjax_reply}; else _files; fi
}
if [[ "${funcstack[1]}" == _plmjax ]]; then _plmjax "$@"; else compdef _plmjax plmjax; fi"""
FISH = """\
function __plmjax_ask
    set -g __plmjax_reply
    switch "$argv[1]"
@cases@
    end
end
function __plmjax_candidates
    set -l words (commandline -opc)[2..]
    set -l current (commandline -ct)
    if test (count $words) -eq 0
        __plmjax_ask commands
        return
    end
    set -l command $words[1]
    set -e words[1]
    __plmjax_ask "commands $command"
    if test -n "$__plmjax_reply"
        test (count $words) -eq 0; and return
        set command "$command $words[1]"
        set -e words[1]
    end
    if string match -q -- '-*' $current
        __plmjax_ask "options $command"
        set -l options $__plmjax_reply
        __plmjax_ask "takes $command"
        if test -n "$__plmjax_reply"; and test (count $words) -gt 0
            __plmjax_ask "experiment $words[1]"
            test -n "$__plmjax_reply"; or set __plmjax_reply common
            for group in $__plmjax_reply
                __plmjax_ask "group $group"
                set -a options $__plmjax_reply
            end
        end
        set -g __plmjax_reply $options
    else if test (count $words) -eq 0
        __plmjax_ask "takes $command"
        if test -n "$__plmjax_reply"
            __plmjax_ask experiments
        else
            __plmjax_ask "values $command"
        end
    else
        __plmjax_ask "values $command $words[-1]"
        test -n "$__plmjax_reply"; or __plmjax_ask "values $words[-1]"
    end
end
function __plmjax_complete
    __plmjax_candidates
    if test -n "$__plmjax_reply"
        printf '%s\\n' $__plmjax_reply
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c plmjax -f -a '(__plmjax_complete)'"""
