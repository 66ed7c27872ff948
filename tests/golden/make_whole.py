#!/usr/bin/env python3
"""Makes NAME_whole.golden: tiny language models as other libraries have them, whole.

    python3 tests/golden/make_whole.py [NAME ...]     # any PyTorch, transformers; run it by hand and commit the result
    python3 tests/golden/make_whole.py xlstm xlstm_both    # xlstm, without transformers in the same environment

Parameter i of the names in alphabetical order is 0.2 sin(i + 0.7 n), but for norms, decays and biases of time steps, which
are in the file; the test makes the others by the formula. The file also has the loss of one text, and the norm of every
gradient, in double; the libraries' casts to float would round them. tests/train/test_model_golden.c reads the files.
"""
import math
import os
import sys

import torch
from torch import nn

from golden import write

V, H, L, T = 64, 32, 2, 9


def mamba():
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L))


def mamba2(n_groups=1, state_size=128):
    from transformers import Mamba2Config, Mamba2ForCausalLM

    return Mamba2ForCausalLM(Mamba2Config(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_heads=4, head_dim=16, n_groups=n_groups,
                                          state_size=state_size, chunk_size=8, pad_token_id=None))


def mamba2_groups():
    return mamba2(2, 5)


def gdn():
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return Qwen3NextForCausalLM(Qwen3NextConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L, intermediate_size=11 * H // 4,
                                                num_experts=0, layer_types=["linear_attention"] * L, **heads))


def gdn_negative():
    """With flash-linear-attention's allow_neg_eigval, which transformers lacks: beta is twice the sigmoid."""
    model = gdn()
    for layer in model.model.layers:
        layer.linear_attn.forward = lambda *args, forward=layer.linear_attn.forward, **named: doubled(lambda: forward(*args, **named))
    return model


def doubled(compute):
    sigmoid = torch.Tensor.sigmoid
    torch.Tensor.sigmoid = lambda self: 2 * sigmoid(self)
    try:
        return compute()
    finally:
        torch.Tensor.sigmoid = sigmoid


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


def xlstm_large():
    from transformers import xLSTMConfig, xLSTMForCausalLM

    return xLSTMForCausalLM(xLSTMConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_heads=2, chunk_size=8,
                                        autocast_kernel_dtype="float32"))


def xlstm_both():
    return xlstm([1])


class M2RNN(nn.Module):
    """lm-engine's mixer with a kernel of 4, SiLU, the residual D and as many heads of everything."""

    def __init__(self, heads=2):
        super().__init__()
        self.input_projection = nn.Linear(H, 4 * H + heads, bias=False)
        self.decay_gate = nn.ParameterDict({"A_log": torch.linspace(-1, 1, heads), "dt_bias": torch.linspace(-3, -2, heads)})
        self.conv1d = nn.Conv1d(3 * H, 3 * H, 4, groups=3 * H, padding=3, bias=False)
        self.state_weight = nn.Parameter(torch.eye(H // heads).repeat(heads, 1, 1))
        self.D = nn.Parameter(torch.ones(heads, H // heads))
        self.g_norm = nn.RMSNorm(H, eps=1e-6)
        self.output_projection = nn.Linear(H, H, bias=False)

    def forward(self, x):
        silu, softplus, heads = nn.functional.silu, nn.functional.softplus, len(self.D)
        x, f, g = self.input_projection(x).split((3 * H, heads, H), -1)
        f = torch.exp(-self.decay_gate["A_log"].exp() * softplus(f + self.decay_gate["dt_bias"]))
        x = silu(self.conv1d(x.transpose(1, 2))[..., :T].transpose(1, 2))
        q, k, v = (part.unflatten(-1, (heads, -1)) for part in x.chunk(3, -1))
        state, ys = 0 * k[:, 0, :, :, None] * v[:, 0, :, None], []
        for t in range(T):
            new = torch.tanh(state @ self.state_weight + k[:, t, :, :, None] * v[:, t, :, None])
            state = f[:, t, :, None, None] * state + (1 - f[:, t, :, None, None]) * new
            ys.append((q[:, t, :, None] @ state)[:, :, 0])
        y = (torch.stack(ys, 1) + v * self.D).flatten(-2)
        return self.output_projection(self.g_norm(y * silu(g)))


class M2RNNBlock(nn.Module):
    def __init__(self, inner=11 * H // 4):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(H, eps=1e-6), nn.RMSNorm(H, eps=1e-6)
        self.m2rnn = M2RNN()
        self.mlp = nn.ModuleDict({"gate_proj": nn.Linear(H, inner, bias=False), "up_proj": nn.Linear(H, inner, bias=False),
                                  "down_proj": nn.Linear(inner, H, bias=False)})

    def forward(self, x):
        x = x + self.m2rnn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](nn.functional.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))


class M2RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(V, H), "layers": nn.ModuleList(M2RNNBlock() for _ in range(L)),
                                    "norm": nn.RMSNorm(H, eps=1e-6)})
        self.lm_head = nn.Linear(H, V, bias=False)

    def forward(self, ids):
        x = self.model["embed_tokens"](ids)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


class RWKV7Block(nn.Module):
    """RWKV-LM's x070 block, in its slow PyTorch form."""

    def __init__(self, first, heads=2):
        super().__init__()
        vector, pair = lambda: nn.Parameter(torch.zeros(1, 1, H)), lambda *dims: nn.Parameter(torch.zeros(*dims))
        if first:
            self.ln0 = nn.LayerNorm(H)
        self.ln1, self.ln2, self.att, self.ffn = nn.LayerNorm(H), nn.LayerNorm(H), nn.Module(), nn.Module()
        for name in ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "k_k", "k_a"] + ([] if first else ["v0"]):
            setattr(self.att, name, vector())
        for name in ["w", "a", "g"] + ([] if first else ["v"]):
            setattr(self.att, name + "1", pair(H, 32)), setattr(self.att, name + "2", pair(32, H))
        for name in ["receptance", "key", "value", "output"]:
            setattr(self.att, name, nn.Linear(H, H, bias=False))
        self.att.r_k, self.att.ln_x = nn.Parameter(torch.zeros(heads, H // heads)), nn.GroupNorm(heads, H, eps=64e-5)
        self.ffn.x_k, self.ffn.key, self.ffn.value = vector(), nn.Linear(H, 4 * H, bias=False), nn.Linear(4 * H, H, bias=False)

    def mix(self, x):
        p, heads = self.att, len(self.att.r_k)
        before = nn.functional.pad(x, (0, 0, 1, -1)) - x
        r, k, v = p.receptance(x + before * p.x_r), p.key(x + before * p.x_k), p.value(x + before * p.x_v)
        w = p.w0 + torch.tanh((x + before * p.x_w) @ p.w1) @ p.w2
        a = torch.sigmoid(p.a0 + (x + before * p.x_a) @ p.a1 @ p.a2)
        g = torch.sigmoid((x + before * p.x_g) @ p.g1) @ p.g2
        if hasattr(p, "v0"):
            v = v + (self.first[0] - v) * torch.sigmoid(p.v0 + (x + before * p.x_v) @ p.v1 @ p.v2)
        else:
            self.first[:] = [v]
        split = lambda x: x.unflatten(-1, (heads, -1))
        kk = nn.functional.normalize(split(k * p.k_k), dim=-1)
        k = k * (1 + (a - 1) * p.k_a)
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(w))
        r, decay, k, v, a = split(r), split(decay), split(k), split(v), split(a)
        state, ys = 0 * v[:, 0, :, :, None] * k[:, 0, :, None], []
        for t in range(T):
            read = state @ -kk[:, t, :, :, None]
            state = state * decay[:, t, :, None] + read @ (kk * a)[:, t, :, None] + v[:, t, :, :, None] * k[:, t, :, None]
            ys.append((state @ r[:, t, :, :, None])[..., 0])
        y = p.ln_x(torch.stack(ys, 1).flatten(0, 1).flatten(1)).reshape(x.shape)
        y = y + ((r * k * p.r_k).sum(-1, keepdim=True) * v).flatten(-2)
        return p.output(y * g)

    def forward(self, x):
        x = self.ln0(x) if hasattr(self, "ln0") else x
        x = x + self.mix(self.ln1(x))
        y = self.ln2(x)
        y = y + (nn.functional.pad(y, (0, 0, 1, -1)) - y) * self.ffn.x_k
        return x + self.ffn.value(torch.relu(self.ffn.key(y)) ** 2)


class RWKV7(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks = nn.Embedding(V, H), nn.ModuleList(RWKV7Block(i == 0) for i in range(L))
        self.ln_out, self.head = nn.LayerNorm(H), nn.Linear(H, V, bias=False)

    def forward(self, ids):
        x, first = self.emb(ids), []
        for block in self.blocks:
            block.first = first
            x = block(x)
        return self.head(self.ln_out(x))


def recurrentgemma(layers=L, block_types=("recurrent",), **attention):
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    return RecurrentGemmaForCausalLM(RecurrentGemmaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=layers, num_attention_heads=2,
                                                          intermediate_size=3 * H, block_types=list(block_types),
                                                          pad_token_id=None,  # whose embedding would get no gradient
                                                          attn_implementation="eager", **attention))


def griffin():
    return recurrentgemma(3, ("recurrent", "recurrent", "attention"), attention_window_size=4, num_key_value_heads=1)


MODELS = {"recurrentgemma": recurrentgemma, "griffin": griffin, "mamba": mamba, "mamba2": mamba2, "mamba2_groups": mamba2_groups, "m2rnn": M2RNNModel, "rwkv7": RWKV7, "gdn": gdn,
          "gdn_negative": gdn_negative,
          "xlstm_large": xlstm_large, "xlstm": xlstm, "xlstm_both": xlstm_both}
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
    logits = model(ids) if name in ("xlstm", "xlstm_both", "m2rnn", "rwkv7") else model(ids, use_cache=False).logits
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
    for name in sys.argv[1:] or [name for name in MODELS if name not in ("xlstm", "xlstm_both")]:
        write(os.path.join(here, name + "_whole.golden"), whole(name))


if __name__ == "__main__":
    main()
