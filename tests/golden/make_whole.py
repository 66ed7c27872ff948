#!/usr/bin/env python3
"""Makes NAME_whole.golden: tiny language models as other libraries have them, whole.

    python3 tests/golden/make_whole.py [NAME ...]     # any PyTorch, transformers; run it by hand and commit the result
    python3 tests/golden/make_whole.py xlstm xlstm_both    # xlstm, without transformers in the same environment

Parameter i of the names in alphabetical order is 0.2 sin(i + 0.7 n), but for norms, decays and biases of time steps, which
are in the file; the test makes the others by the formula. The file also has the loss of one text, and the norm of every
gradient, in double; the libraries' casts to float would round them. tests/train/test_model_golden.c reads the files.
"""
import os
import sys

import torch
from torch import nn

from golden import write

V, H, L, T = 64, 32, 2, 9


def mamba():
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L))


def mamba2():
    from transformers import Mamba2Config, Mamba2ForCausalLM

    return Mamba2ForCausalLM(Mamba2Config(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_heads=4, head_dim=16, n_groups=1,
                                          chunk_size=8, pad_token_id=None))


def gdn():
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return Qwen3NextForCausalLM(Qwen3NextConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L, intermediate_size=11 * H // 4,
                                                num_experts=0, layer_types=["linear_attention"] * L, **heads))


def xlstm(slstm_at="all"):
    from xlstm import (FeedForwardConfig, mLSTMBlockConfig, mLSTMLayerConfig, sLSTMBlockConfig, sLSTMLayerConfig, xLSTMLMModel,
                       xLSTMLMModelConfig)

    block = sLSTMBlockConfig(slstm=sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4),
                             feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"))
    mlstm = mLSTMBlockConfig(mlstm=mLSTMLayerConfig(num_heads=2))
    model = xLSTMLMModel(xLSTMLMModelConfig(vocab_size=V, num_blocks=L, embedding_dim=H, context_length=T, slstm_at=slstm_at,
                                            slstm_block=block, mlstm_block=None if slstm_at == "all" else mlstm))
    model.reset_parameters()
    return model


def xlstm_both():
    return xlstm([1])


def recurrentgemma():
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    return RecurrentGemmaForCausalLM(RecurrentGemmaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_attention_heads=2,
                                                          intermediate_size=3 * H, block_types=["recurrent"],
                                                          pad_token_id=None))  # whose embedding would get no gradient


MODELS = {"recurrentgemma": recurrentgemma, "mamba": mamba, "mamba2": mamba2, "gdn": gdn, "xlstm": xlstm,
          "xlstm_both": xlstm_both}
IN_THE_FILE = ("norm", "A_log", "dt", "recurrent_param")  # and names that end in .D


def in_double(compute):
    single, to_single = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, lambda self: self
    try:
        return compute()
    finally:
        torch.float32, torch.Tensor.float = single, to_single


def loss_of(name, model):
    ids = (7 * torch.arange(T) % V)[None]
    logits = model(ids) if name.startswith("xlstm") else model(ids, use_cache=False).logits
    loss = nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    loss.backward()
    return loss


def whole(name):
    torch.manual_seed(0)
    model, arrays = MODELS[name](), {}
    with torch.no_grad():
        for i, (key, p) in enumerate(sorted(model.named_parameters())):
            if any(word in key for word in IN_THE_FILE) or key.endswith(".D"):
                arrays["parameter/" + key] = p.detach().float()
            else:
                p.copy_(0.2 * torch.sin(i + 0.7 * torch.arange(p.numel(), dtype=torch.float64)).reshape(p.shape))
    loss = in_double(lambda: loss_of(name, model.double()))
    arrays["loss"] = loss.detach().double().reshape(1)
    for key, p in model.named_parameters():
        arrays["norm/" + key] = p.grad.double().norm().reshape(1)
    norm = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt().item()
    print(f"{name}: loss {loss.item():.6f}, norm of the gradient {norm:.6f}")
    return arrays


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for name in sys.argv[1:] or [name for name in MODELS if not name.startswith("xlstm")]:
        write(os.path.join(here, name + "_whole.golden"), whole(name))


if __name__ == "__main__":
    main()
