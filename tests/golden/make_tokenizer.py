#!/usr/bin/env python3
"""Makes the golden files of the tokenizer: the tokens of PyPI's `tokenizers` for a text.

    pip install tokenizers; python3 tests/golden/make_tokenizer.py      # run it by hand and commit the result

tokenizer.txt is the text: real lines, then cases that are hard for a pre-tokenizer: every kind of space, contractions, characters
from all of Unicode. A vocabulary trained on it is stored in the library's current and older format:

    tokenizer.json            merges as pairs; one special token
    tokenizer_strings.json    merges as strings; a prepended space; added tokens of both kinds, some inside others

tokenizer.golden has the tokens of the text for both, in the format of make.py. tests/train/test_tokenizer.c reads them.
"""
import json
import os
import struct

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))


def in_here(name):
    return os.path.join(HERE, name)


def train(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def as_strings(tokenizer):
    """The same in the older format, with more added tokens."""
    parts = json.loads(tokenizer.to_str())
    model = parts["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    del model["type"]
    parts["pre_tokenizer"]["add_prefix_space"] = True
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    more = [("the", True), ("the peo", True), (" o'clock", True), ("he s", False)]
    for number, (content, normalized) in enumerate(more):
        parts["added_tokens"].append({"id": len(model["vocab"]) + number, "content": content,
                                      "normalized": normalized, "special": False, **flags})
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def write(path, arrays):
    with open(path, "wb") as file:
        file.write(b"remat golden 1\n")
        for name, ids in arrays.items():
            file.write(f"{name} i32 1 {len(ids)}\n".encode())
        file.write(b"\n")
        for ids in arrays.values():
            file.write(struct.pack(f"<{len(ids)}i", *ids))


def main():
    with open(in_here("tokenizer.txt"), newline="", encoding="utf-8") as file:
        text = file.read()
    first = train(text)
    files = {"tokenizer": first.to_str(), "tokenizer_strings": as_strings(first)}
    tokens = {}
    for name, written in files.items():
        with open(in_here(name + ".json"), "w", encoding="utf-8") as file:
            file.write(written + "\n")
        tokens[name] = Tokenizer.from_str(written).encode(text).ids
        print(name, len(text.encode()), "bytes,", len(tokens[name]), "tokens")
    write(in_here("tokenizer.golden"), tokens)


main()
