"""The scripts by which bash, zsh and fish complete, and what passes between a script and this program.

click has the three, and `skerry.cli.completion` the names. What is different here: a value behind `--option=`
is completed, also where the shell takes the whole word for one, or splits it at `=` and `:`; zsh is prepared
if nobody has done that; fish shows descriptions with commas. Scripts of earlier versions still work.
"""

from __future__ import annotations

import os
from typing import Any, Final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

VARIABLE: Final = "_SKERRY_COMPLETE"  # by which a script calls us
_BREAKS: Final = "=:"  # of COMP_WORDBREAKS: bash completes what is behind the last of these

_BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' type value completion
    COMPREPLY=()
    for completion in $(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDS="${COMP_WORDS[*]}" \
COMP_CWORD="$COMP_CWORD" %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH: Final = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a names described response
    local type key descr
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
%(complete_var)s=zsh_complete %(prog_name)s)}")
    for type key descr in ${response}; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain) if [[ $descr == _ ]]; then names+=("$key"); else described+=("$key:$descr"); fi ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#names )) && compadd -U -V unsorted -a names
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    # Found in a folder of $fpath: the function is called.
    %(complete_func)s "$@"
else
    # A zsh whose completion nobody has started, as that of Debian without a configuration.
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH: Final = """\
function %(complete_func)s
    for line in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
COMP_CWORD=(commandline -t) %(prog_name)s)
        set -l parts (string split --max 1 -- , $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo -- $parts[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Bash(BashComplete):
    source_template = _BASH
    _typed = ""  # what bash keeps of the word

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_LINE")
        if not line:  # a script of an earlier version
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = "" if line[-1].isspace() or len(words) < 2 else words.pop()
        self._typed = incomplete[: max(map(incomplete.rfind, _BREAKS)) + 1]
        return words[1:], incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return _whole_words(super().get_completions(args, incomplete), incomplete)

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._typed)}"


class _Zsh(ZshComplete):
    source_template = _ZSH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return _whole_words(super().get_completions(args, incomplete), incomplete)


class _Fish(FishComplete):
    source_template = _FISH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return _whole_words(super().get_completions(args, incomplete), incomplete)


def register() -> None:
    """Let click use these."""
    for each in (_Bash, _Zsh, _Fish):
        add_completion_class(each)


def _whole_words(items: list[CompletionItem[str]], incomplete: str) -> list[CompletionItem[str]]:
    """With the option before them, if one is in the word: a shell replaces the whole of it."""
    option, equals, _ = incomplete.partition("=")
    if not (equals and option.startswith("--")):
        return items
    return [
        CompletionItem(f"{option}={item.value}", item.type, item.help) if item.type == "plain" else item
        for item in items
    ]
