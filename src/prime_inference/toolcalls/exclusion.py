"""Text that does not hold certain substrings, as rules.

The rules are the automaton of Aho and Corasick (1975), one rule for each state, without the
transitions that would complete a forbidden substring.
"""

from __future__ import annotations

from functools import lru_cache

from prime_inference.toolcalls.grammar import EMPTY, any_but, literal


@lru_cache(maxsize=256)
def excluding(
    name: str, forbidden: tuple[str, ...], *, inside_json: bool = False
) -> tuple[tuple[str, str], ...]:
    """Rules for text without the forbidden substrings; `name` is the rule to begin with.

    With `inside_json` the text is the inside of a JSON string: quotes and control characters
    are out, and an escape (the rule `escape`) may stand between any two characters.
    """
    states = sorted({p[:n] for p in forbidden for n in range(len(p))} | {""}, key=len)
    names = {state: f"{name}-{index}" if state else name for index, state in enumerate(states)}
    rules = []
    for state in states:
        steps = _steps(state, states, forbidden)
        known = "".join(steps) + ('"\\' if inside_json else "")
        bodies = [f"{any_but(known, control=not inside_json)} {name}"]
        bodies += [f"{literal(c)} {names[to]}" for c, to in steps.items() if to is not None]
        if inside_json:
            bodies.append(f"escape {name}")
        rules.append((names[state], " | ".join([*bodies, EMPTY])))
    return tuple(rules)


def some(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    """The body for at least one character of the text that these rules describe."""
    return dict(rules)[name].removesuffix(f" | {EMPTY}")


def _steps(state: str, states: list[str], forbidden: tuple[str, ...]) -> dict[str, str | None]:
    """The characters that do not lead back to the start, and the state each leads to.

    That is the longest suffix that is a state; None where a forbidden substring is complete.
    """
    tails = [state[start:] for start in range(len(state) + 1)]
    chars = {p[len(tail)] for tail in tails for p in forbidden if p.startswith(tail) and p != tail}
    steps: dict[str, str | None] = {}
    for char in sorted(chars):
        text = state + char
        if any(text.endswith(pattern) for pattern in forbidden):
            steps[char] = None
        else:
            steps[char] = next(text[i:] for i in range(len(text) + 1) if text[i:] in states)
    return steps
