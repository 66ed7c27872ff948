#!/usr/bin/env python3
"""Writes train/data/unicode_ranges.h: which code points PyPI's `tokenizers` takes for letters (\\p{L}) and numbers (\\p{N}).

    # Run by hand, when tokenizers follows a later Unicode version
    pip install tokenizers; python3 scripts/unicode_classes.py

What joins with a letter in its ByteLevel pre-tokenizer is a letter, what joins with a digit is a number.
"""
import os

from tokenizers import __version__, pre_tokenizers

SURROGATES = range(0xD800, 0xE000)
split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str


def ranges(neighbour):
    found = []
    for code in (c for c in range(0x110000) if c not in SURROGATES and len(split(neighbour + chr(c))) == 1):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, found):
    lines = [f"static const rm_code_range {name}[] = {{"]
    for first, last in found:
        item = f"{{0x{first:X}, 0x{last:X}}},"
        if len(lines) == 1 or len(lines[-1]) + 1 + len(item) > 118:
            lines.append("    " + item)
        else:
            lines[-1] += " " + item
    return "\n".join(lines + ["};"])


letters, numbers = ranges("a"), ranges("1")
where = os.path.join(os.path.dirname(__file__), "..", "train", "data", "unicode_ranges.h")
with open(where, "w") as file:
    count = [sum(last - first + 1 for first, last in found) for found in (letters, numbers)]
    file.write(f"""/* unicode_ranges.h: letters ({count[0]} of them) and numbers ({count[1]}), as tokenizers {__version__} knows them. Written by
 * scripts/unicode_classes.py. */
/* clang-format off */
{table("letters", letters)}

{table("numbers", numbers)}
/* clang-format on */
""")
