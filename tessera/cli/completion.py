"""tessera completion: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tessera.cli.arguments import parser

_BASH = """_tessera() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" path="" i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ "${{COMP_WORDS[i]}}" == -* ]] || path="$path ${{COMP_WORDS[i]}}"
  done
  case "$path" in
{cases}
  esac
}}
complete -o default -F _tessera tessera
"""


def completion(args: argparse.Namespace) -> int:
    """Print a script for a shell to complete commands, options and files."""
    if args.shell == "fish":
        print("\n".join(_fish()))
        return 0
    if args.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_BASH.format(cases="\n".join(_cases())), end="")
    return 0


def _commands(
    p: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command and the words that lead to it, the longest first."""
    for a in p._actions:
        if isinstance(a, argparse._SubParsersAction):
            for name, inner in a.choices.items():
                yield from _commands(inner, (*path, name))
    yield path, p


def _words(p: argparse.ArgumentParser) -> list[str]:
    """What may follow: commands, or else options."""
    inner = [n for a in p._actions if isinstance(a, argparse._SubParsersAction) for n in a.choices]
    return inner or [o for a in p._actions for o in a.option_strings]


def _cases() -> Iterator[str]:
    for path, p in _commands(parser()):
        words = " ".join(_words(p))
        pattern = f'" {" ".join(path)}"*' if path else '""'
        if path and not words.startswith("-"):
            pattern = f'" {" ".join(path)}"'
        reply = f'COMPREPLY=($(compgen -W "{words}" -- "$word"))'
        files = f'[[ "$word" == -* ]] && {reply}' if words.startswith("-") else reply
        yield f"    {pattern}) {files} ;;"


def _fish() -> Iterator[str]:
    for path, p in _commands(parser()):
        seen = (
            " and ".join(f"__fish_seen_subcommand_from {n}" for n in path)
            or "__fish_use_subcommand"
        )
        for word in _words(p):
            option = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            if not word.startswith("-") or word.startswith("--"):
                yield f"complete -c tessera -n '{seen}' {option}"
