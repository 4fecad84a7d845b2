"""A second way to compute values: recursion over nested Python lists and the standard library's median."""

import statistics


def nested(words):
    """Words of an expression without parentheses -> ["[MAX", 4, ["[MIN", 2, 3]] or a digit."""
    word = words.pop(0)
    if not word.startswith("["):
        return int(word)
    found = [word]
    while words[0] != "]":
        found.append(nested(words))
    words.pop(0)
    return found


def value(tree):
    if isinstance(tree, int):
        return tree
    arguments = [value(argument) for argument in tree[1:]]
    return {
        "[MIN": min(arguments),
        "[MAX": max(arguments),
        "[MED": int(statistics.median(arguments)),
        "[SM": sum(arguments) % 10,
    }[tree[0]]


def value_of(text):
    return value(nested([word for word in text.split() if word not in "()"]))


def depth(tree):
    return 0 if isinstance(tree, int) else 1 + max(depth(argument) for argument in tree[1:])
