#!/usr/bin/env python3
"""Which models of Hugging Face's transformers train under remat.compile, with PyTorch's gradients.

    bench/transformers_models.py [--kind=CAUSAL_LM] [--model=GemmaForCausalLM] [--seconds=60]

Each model class that transformers registers for a task is made tiny (about 2 layers of 16 features; no dropout) and gets one random
batch of 2 rows. Loss and gradients are compared with PyTorch's in double precision. A row is one of:

    ok        the loss agrees to 1e-5, and each gradient to 1e-4 of its largest element, or twice PyTorch's own error in float32
    WRONG     they do not
    refused   by remat.compile, and why
    skipped   PyTorch cannot train this tiny model: it refuses the sizes or the batch, or takes too long

Needs build/release, or REMAT_LIBRARY, and a Python with torch and transformers.
"""

from __future__ import annotations

import argparse
import collections
import copy
import importlib
import os
import re
import signal
import sys
import warnings

VOCABULARY, ROWS, LENGTH = 50, 2, 9
KINDS = {
    "CAUSAL_LM": "text", "MASKED_LM": "text", "SEQ_TO_SEQ_CAUSAL_LM": "text", "TOKEN_CLASSIFICATION": "tokens",
    "IMAGE_CLASSIFICATION": "image", "SEMANTIC_SEGMENTATION": "pixels", "AUDIO_CLASSIFICATION": "audio",
}  # fmt: skip
SIZES = {
    16: "hidden_size d_model n_embd embedding_size embed_dim dim model_dim emb_dim d_embed word_embed_proj_dim",
    VOCABULARY: "vocab_size n_vocab",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers layers "
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts_per_tok",
    1: "num_key_value_heads num_kv_heads",
    8: "head_dim d_kv attention_head_size qk_head_dim patch_size",
    32: "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner hidden_dim ffn_hidden_size moe_intermediate_size image_size",
    64: "max_position_embeddings n_positions max_seq_len",
    4: "num_experts num_local_experts n_routed_experts sliding_window",
}  # fmt: skip
SIZE_OF = {name: size for size, names in SIZES.items() for name in names.split()}


class TooLong(Exception):
    pass


def stop(*_):
    raise TooLong


def tiny(kind_of_config):
    settings = {}
    for name, value in kind_of_config().to_dict().items():
        if name in ("layerdrop", "mask_time_prob", "mask_feature_prob") or (isinstance(value, float) and "drop" in name):
            settings[name] = 0.0
        elif name == "apply_spec_augment":
            settings[name] = False
        elif type(value) is int and name in SIZE_OF:
            settings[name] = SIZE_OF[name]
        elif type(value) is int and name.endswith("token_id") and value >= VOCABULARY:
            settings[name] = 1
    return kind_of_config(**settings)


def batch_of(kind, config):
    size = getattr(config, "image_size", 64)
    size = size if isinstance(size, int) else size[0]
    ids, classes = torch.randint(3, VOCABULARY, (ROWS, LENGTH)), torch.tensor([2, 0])
    return {
        "text": lambda: {"input_ids": ids, "labels": torch.randint(3, VOCABULARY, (ROWS, LENGTH))},
        "tokens": lambda: {"input_ids": ids, "labels": torch.randint(0, 2, (ROWS, LENGTH))},
        "image": lambda: {"pixel_values": torch.randn(ROWS, 3, size, size), "labels": classes},
        "pixels": lambda: {"pixel_values": torch.randn(ROWS, 3, size, size), "labels": torch.randint(0, 2, (ROWS, size, size))},
        "audio": lambda: {"input_values": torch.randn(ROWS, 4000), "labels": classes},
    }[KINDS[kind]]()


def gradients(model, batch, dtype):
    model = copy.deepcopy(model).to(dtype)
    loss = model(**{name: x.to(dtype) if x.is_floating_point() else x for name, x in batch.items()}).loss
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def error(ours, exact):
    worst = 0.0
    for a, b in zip(ours, exact, strict=True):
        largest = 0 if b is None else b.abs().max().item()
        if largest > 1e-7:
            worst = max(worst, float("inf") if a is None else (a.double() - b).abs().max().item() / largest)
    return worst


def check(kind, name):
    """The result, and what there is to say about it."""
    make = getattr(transformers, name)
    torch.manual_seed(1)
    try:
        config = tiny(make.config_class)
        config.num_labels = 3
        with torch.device("meta"):
            elements = sum(p.numel() for p in make(config).parameters())
        if elements > 5_000_000:
            return "skipped", f"{elements} parameters, although it was made small"
        model, batch = make(config).train(), batch_of(kind, config)
        own_loss, own = gradients(model, batch, torch.float32)
        try:
            loss, exact = gradients(model, batch, torch.float64)
        except RuntimeError:  # some have kernels for float32 alone
            loss, exact = own_loss, [g if g is None else g.double() for g in own]
    except TooLong:
        raise
    except Exception as failed:  # of any kind: they are transformers'
        return "skipped", f"{type(failed).__name__}: {failed}"
    try:
        ours_loss = float(remat.compile(model, None, batch)(**batch))
    except remat.Error as refused:
        return "refused", str(refused)
    ours, float32 = error([p.grad for p in model.parameters()], exact), error(own, exact)
    close = abs(ours_loss - loss) <= max(1e-5 * abs(loss), 2 * abs(own_loss - loss)) and ours <= max(1e-4, 2 * float32)
    return "ok" if close else "WRONG", f"loss {ours_loss:.7g}, exactly {loss:.7g}; gradients {ours:.1e}, PyTorch's {float32:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--model", action="append")
    parser.add_argument("--seconds", type=int, default=60, help="for each model")
    chosen = parser.parse_args()
    global remat, torch, transformers  # --help needs none of them
    import torch
    import transformers

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, os.path.join(root, "python"))
    os.environ.setdefault("REMAT_LIBRARY", os.path.join(root, "build", "release", "libremat.so"))
    import remat

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, stop)
    registered = importlib.import_module("transformers.models.auto.modeling_auto")
    for kind in chosen.kind or KINDS:
        count = collections.Counter()
        names = getattr(registered, f"MODEL_FOR_{kind}_MAPPING_NAMES").values()
        for name in dict.fromkeys(n if isinstance(n, str) else n[0] for n in names):
            if chosen.model and name not in chosen.model:
                continue
            signal.alarm(chosen.seconds)
            try:
                result, about = check(kind, name)
            except TooLong:
                result, about = "skipped", f"not done in {chosen.seconds} s"
            finally:
                signal.alarm(0)
            count[result] += 1
            about = re.sub(r'File "\S*/', 'File "', " ".join(about.split()))
            print(f"{kind} {name:45} {result:8} {about[:240]}", flush=True)
        print(f"{kind}: {', '.join(f'{n} {result}' for result, n in count.items())}", flush=True)


if __name__ == "__main__":
    main()
