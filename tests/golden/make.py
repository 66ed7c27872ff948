#!/usr/bin/env python3
"""Makes the golden files: PyTorch's results for small networks in double precision.

    python3 tests/golden/make.py [NETWORK ...]   # any PyTorch, minGRU-pytorch 0.2, transformers; run it by hand and commit the result

The tests read the files (tests/golden/golden.h) and never need PyTorch. Each file holds one network: its initial
parameters (rounded to float, so both sides start from the same numbers), its inputs, the loss and every gradient of the
first batch, and, for each optimizer, the losses, gradient norms and final parameters of ten steps on ten batches. For
networks with carried states (LSTM, GRU, RNN) also truncated back-propagation: the ten batches as windows that follow
one another, with detached states; the gradient of all ten, and ten steps of plain SGD, one per window.

Format: a line "remat golden 1", a line "NAME DTYPE RANK DIM..." per array, an empty line; then the arrays' bytes, little
endian, row-major, in the same order, with nothing between them.

It also prints how far PyTorch's own float32 run lies from its float64 run, in units of 2^-24 times the largest magnitude
of the array: the basis of the tolerances in tests/engine/test_golden.c. Models of other libraries, mingru, mingru_no_conv, minlstm,
mamba, gpt2 and gpt2_untied, lstm_tied and lstm_projected_both have no optimizers in their files; tests/train/test_model_golden.c reads them.
"""
import os
import sys

import torch
from minGRU_pytorch.minLM import minLM
from torch import nn
from transformers import GPT2Config, GPT2Model, MambaConfig, MambaForCausalLM
from transformers.models.mamba.modeling_mamba import MambaRMSNorm

from golden import write

STEPS, T, B, V, E, H, L = 10, 7, 3, 11, 4, 5, 2
PROJECTION = 3

OPTIMIZERS = {  # name -> (constructor, clip_grad_norm): the test sets the same numbers
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.01), 0.25),
    "sgd_plain": (lambda p: torch.optim.SGD(p, lr=0.1), 0.0),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.01), 0.25),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.1), 0.0),
}


class ByteModel(nn.Module):
    """embedding -> layers -> linear; cross-entropy at every timestep."""

    def __init__(self, cell, projection=0):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.rnn = cell(E, H, num_layers=L, **({"proj_size": projection} if projection else {}))
        self.head = nn.Linear(projection or H, V)

    def forward(self, tokens, targets):
        return self.window(tokens, targets, None)[0]

    def window(self, tokens, targets, state):
        y, state = self.rnn(self.embedding(tokens), state)
        return nn.functional.cross_entropy(self.head(y).reshape(-1, V), targets.reshape(-1)), state

    @staticmethod
    def batches(generator):
        return [torch.randint(V, (STEPS, T, B), generator=generator) for _ in range(2)]


class BothDirections(nn.Module):
    """A bidirectional LSTM with projection, without carried states."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, 6)
        self.rnn = nn.LSTM(6, 6, num_layers=L, proj_size=PROJECTION, bidirectional=True)
        self.head = nn.Linear(2 * PROJECTION, V)

    def forward(self, tokens, targets):
        y, _ = self.rnn(self.embedding(tokens))
        return nn.functional.cross_entropy(self.head(y).reshape(-1, V), targets.reshape(-1))

    batches = staticmethod(ByteModel.batches)


class MinimalModel(minLM):
    """minGRU-pytorch's language model; (T,B) as in Remat."""

    def __init__(self, lstm, conv=True):
        super().__init__(num_tokens=V, dim=6, depth=L, use_lstm=lstm, enable_conv=conv)
        for module in self.modules():
            if isinstance(module, nn.RMSNorm):
                module.eps = 2.0**-23  # PyTorch's default for floats, in double too

    def forward(self, tokens, targets):
        return nn.functional.cross_entropy(super().forward(tokens.t()).transpose(1, 2), targets.t())

    batches = staticmethod(ByteModel.batches)


class Gpt2(GPT2Model):
    """Hugging Face's GPT-2, with GPT2LMHeadModel's tied head; (T,B) as in Remat."""

    def __init__(self):
        super().__init__(GPT2Config(vocab_size=V, n_positions=T + 2, n_embd=6, n_layer=L, n_head=2, embd_pdrop=0,
                                    attn_pdrop=0, resid_pdrop=0))

    def forward(self, tokens, targets):
        logits = super().forward(tokens.t()).last_hidden_state @ self.wte.weight.t()
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets.t())

    batches = staticmethod(ByteModel.batches)


class Gpt2Untied(Gpt2):
    """The same with an untied head, as in GPT2LMHeadModel with tie_word_embeddings=False."""

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(6, V, bias=False)

    def forward(self, tokens, targets):
        logits = self.lm_head(GPT2Model.forward(self, tokens.t()).last_hidden_state)
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets.t())


class Mamba(MambaForCausalLM):
    """Hugging Face's Mamba, with its tied head; (T,B) as in Remat. Its casts to float would round a run in double."""

    def __init__(self):
        super().__init__(MambaConfig(vocab_size=V, hidden_size=6, num_hidden_layers=L, residual_in_fp32=False))
        for module in self.modules():
            if isinstance(module, MambaRMSNorm):
                module.forward = lambda x, m=module: nn.functional.rms_norm(x, x.shape[-1:], m.weight, m.variance_epsilon)

    def forward(self, tokens, targets):
        to_float, torch.Tensor.float = torch.Tensor.float, lambda self: self
        try:
            logits = super().forward(tokens.t(), use_cache=False).logits
        finally:
            torch.Tensor.float = to_float
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets.t())

    batches = staticmethod(ByteModel.batches)


class Planes(nn.Module):
    """Layers that upsample, pad, normalise and transpose planes, and a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.wide = nn.ConvTranspose2d(6, 6, 2, stride=(1, 2), padding=(1, 2), output_padding=(0, 1), groups=2,
                                       dilation=(2, 1))
        self.norm = nn.GroupNorm(3, 6)
        self.up = nn.ModuleList([nn.Upsample(scale_factor=(2, 3)), nn.Upsample(scale_factor=2, mode="bilinear"),
                                 nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)])
        self.head = nn.Linear(6, 5)

    def forward(self, x, target):
        y = self.norm(self.wide(self.conv(x)))
        y = torch.tanh(self.up[0](y)) * nn.functional.pad(self.up[2](y), (1, 2, 0, 0))
        y = self.up[1](y[:, :, :2])
        return nn.functional.cross_entropy(self.head(y.flatten(2).transpose(1, 2)).transpose(1, 2), target)

    @staticmethod
    def batches(generator):
        return [torch.randn(STEPS, B, 2, 2, 3, generator=generator).double(),
                torch.randint(5, (STEPS, B, 4 * 18), generator=generator)]


class Arithmetic(nn.Module):
    """Operands that broadcast, and element-wise functions."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(E, H), nn.Linear(H, 3)
        self.gain, self.shift, self.row = (nn.Parameter(torch.randn(*dim)) for dim in ((H,), (B, 1), (1, B, H)))

    def forward(self, x, target):
        y = self.inner(x)
        y = self.shift - nn.functional.softplus(y) * self.gain + x.mean(2, keepdim=True) * self.row
        y = torch.exp(nn.functional.hardtanh(y, -1.5, 0.5)) - torch.clamp(y, max=0.25) * torch.sigmoid(self.gain)
        y = torch.cat((y[:, :, None], self.gain - y[:, :, None]), 2).mean(2)
        return nn.functional.mse_loss(self.head(y) + self.shift, target)

    @staticmethod
    def batches(generator):
        return [torch.randn(STEPS, T, B, E, generator=generator).double(),
                torch.randn(STEPS, T, B, 3, generator=generator).double()]


class Labels(nn.Module):
    """Multi-label classification."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate, self.head = nn.Linear(E, H), nn.Linear(E, H), nn.Linear(H, 3)

    def forward(self, x, target):
        y = torch.softmax(self.inner(x), 2) * torch.log_softmax(self.gate(x), 2)
        return nn.functional.binary_cross_entropy_with_logits(3 * self.head(y), target)

    @staticmethod
    def batches(generator):
        return [torch.randn(STEPS, T, B, E, generator=generator).double(),
                torch.rand(STEPS, T, B, 3, generator=generator).double()]


class Turned(nn.Module):
    """Llama's attention: rotary positions, four heads of q, two of k and v."""
    HEADS, GROUPS, WIDTH = 4, 2, 4

    def __init__(self):
        super().__init__()
        wide, narrow = self.HEADS * self.WIDTH, self.GROUPS * self.WIDTH
        self.q, self.k, self.v = nn.Linear(E, wide), nn.Linear(E, narrow), nn.Linear(E, narrow)
        self.head = nn.Linear(wide, 3)

    def forward(self, x, target):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        q, k, v = (part(x).unflatten(2, (-1, self.WIDTH)).permute(1, 2, 0, 3) for part in (self.q, self.k, self.v))
        speed = 100.0 ** (-torch.arange(0, self.WIDTH, 2, dtype=torch.float64) / self.WIDTH)
        angle = torch.outer(torch.arange(T, dtype=torch.float64), speed).repeat(1, 2)[None]
        q, k = apply_rotary_pos_emb(q, k, angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return nn.functional.mse_loss(self.head(y.permute(2, 0, 1, 3).flatten(2)), target)

    @staticmethod
    def batches(generator):
        return [torch.randn(STEPS, T, B, E, generator=generator).double(),
                torch.randn(STEPS, T, B, 3, generator=generator).double()]


class Tied(nn.Module):
    """An LSTM with tied embeddings."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, 6)
        self.rnn = nn.LSTM(6, 6, num_layers=L)
        self.head = nn.Linear(6, V)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        y = self.head(self.rnn(self.embedding(tokens))[0])
        return nn.functional.cross_entropy(y.reshape(-1, V), targets.reshape(-1))

    batches = staticmethod(ByteModel.batches)


class Mixture(nn.Module):
    """The other layers, on real-valued sequences: regression from the mean over time and from the last step."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(E, H)
        self.norm = nn.LayerNorm(H)
        self.rnn = nn.GRU(H, H)
        self.gate = nn.Linear(H, H)
        self.head = nn.Linear(H, 2)

    def forward(self, x, target):
        a = self.norm(nn.functional.gelu(self.inner(x)))
        h, _ = self.rnn(a)
        z = h * torch.sigmoid(self.gate(a)) + torch.relu(a) * 0.5
        pooled = torch.tanh(z.mean(0)) + z[-1]
        return nn.functional.mse_loss(self.head(pooled), target)

    @staticmethod
    def batches(generator):
        return [torch.randn(STEPS, T, B, E, generator=generator).double(),
                torch.randn(STEPS, B, 2, generator=generator).double()]


class Images(nn.Module):
    """Convolutions in one and two dimensions, batch norm and pooling, with all their parameters."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False)
        self.norm = nn.BatchNorm2d(6, momentum=0.2)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1, groups=2)
        self.signal = nn.Conv1d(8, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x, target):
        y = torch.relu(self.norm(self.conv1(x)))
        y = self.conv2(nn.functional.max_pool2d(y, (3, 2), stride=(1, 2), padding=(1, 0)))
        s = self.signal(nn.functional.avg_pool2d(y, 2, stride=1, padding=1).flatten(2)).mean(2)
        y = self.head(y.mean((2, 3)) + torch.cat((s, s), 1))
        return nn.functional.cross_entropy(y, target)

    @staticmethod
    def batches(generator):
        return [torch.randn(STEPS, B, 2, 9, 8, generator=generator).double(),
                torch.randint(3, (STEPS, B), generator=generator)]


class Packed(nn.Module):
    """Unsorted sequences of different lengths: both directions of every cell; the output comes from each sequence's own ends."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(E, H, bidirectional=True)
        self.gru = nn.GRU(2 * H, H, bidirectional=True)
        self.rnn = nn.RNN(2 * H, H, bidirectional=True)
        self.head = nn.Linear(2 * H, 2)

    def forward(self, x, target_and_length):
        target, lengths = target_and_length[:, :2], target_and_length[:, 2].long()
        y = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, _ = self.lstm(y)
        y, _ = self.gru(y)
        _, h = self.rnn(y)
        return nn.functional.mse_loss(self.head(torch.cat((h[-2], h[-1]), 1)), target)

    @staticmethod
    def batches(generator):
        lengths = torch.randint(1, T + 1, (STEPS, B, 1), generator=generator)
        return [torch.randn(STEPS, T, B, E, generator=generator).double(),
                torch.cat((torch.randn(STEPS, B, 2, generator=generator), lengths), 2).double()]


def state(model):
    """Parameters and buffers by name, tied ones once, without num_batches_tracked, which Remat lacks."""
    once = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name: value for name, value in model.state_dict().items()
            if name in once and not name.endswith("num_batches_tracked")}


def train(model, batches, optimizer_name):
    make, clip = OPTIMIZERS[optimizer_name]
    optimizer = make(model.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = model(batches[0][step], batches[1][step])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf")).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


def detached(state):
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def truncated(model, batches, optimizer):
    """The loop of PyTorch's examples. Without an optimizer the gradients of windows are averaged."""
    state, losses = None, []
    model.zero_grad(set_to_none=True)
    for tokens, targets in zip(*batches):
        if optimizer:
            optimizer.zero_grad()
        loss, state = model.window(tokens, targets, state)
        (loss if optimizer else loss / STEPS).backward()
        if optimizer:
            optimizer.step()
        losses.append(loss.item())
        state = detached(state)
    return torch.tensor(losses, dtype=torch.float64)


def run(build, start, batches, dtype):
    """Everything in a golden file except its inputs, computed in `dtype`."""
    real = [b.to(dtype) if b.is_floating_point() else b for b in batches]

    def fresh():
        model = build().to(dtype)
        model.load_state_dict({name: value.to(dtype) for name, value in start.items()}, strict=False)
        return model

    out = {}
    model = fresh()
    loss = model(real[0][0], real[1][0])
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    for name, parameter in model.named_parameters():
        out["gradient/" + name] = parameter.grad
    for optimizer in () if isinstance(model, (minLM, Gpt2, Mamba, Tied, BothDirections)) else OPTIMIZERS:
        model = fresh()
        losses, norms = train(model, real, optimizer)
        out[optimizer + "/losses"] = torch.tensor(losses, dtype=torch.float64)
        out[optimizer + "/norms"] = torch.tensor(norms, dtype=torch.float64)
        for name, value in state(model).items():
            out[optimizer + "/" + name] = value.detach()
    if hasattr(model, "window"):
        model = fresh()
        out["windows/loss"] = truncated(model, real, None).mean().reshape(1)
        for name, parameter in model.named_parameters():
            out["windows/" + name] = parameter.grad
        model = fresh()
        out["truncated/losses"] = truncated(model, real, torch.optim.SGD(model.parameters(), lr=0.5))
        for name, parameter in model.named_parameters():
            out["truncated/" + name] = parameter.detach()
    return out


def report(name, exact, single):
    worst = {}
    for key, value in exact.items():
        unit = 2.0**-24 * max(value.abs().max().item(), 1e-30)
        distance = (single[key].double() - value).abs().max().item() / unit
        group = key.split("/")[0] if "/" in key else key
        if "/" in key and group in OPTIMIZERS:
            group += {"losses": " losses", "norms": " norms"}.get(key.split("/")[1], " parameters")
        worst[group] = max(worst.get(group, 0), distance)
    print(name, {key: round(value, 1) for key, value in worst.items()})


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    networks = {"lstm": lambda: ByteModel(nn.LSTM), "gru": lambda: ByteModel(nn.GRU), "rnn": lambda: ByteModel(nn.RNN),
                "mixture": Mixture, "mingru": lambda: MinimalModel(False), "minlstm": lambda: MinimalModel(True),
                "images": Images, "gpt2": Gpt2, "lstm_tied": Tied, "packed": Packed, "planes": Planes,
                "lstm_projected": lambda: ByteModel(nn.LSTM, PROJECTION), "lstm_projected_both": BothDirections,
                "labels": Labels, "turned": Turned, "gpt2_untied": Gpt2Untied, "mamba": Mamba,
                "mingru_no_conv": lambda: MinimalModel(False, False), "arithmetic": Arithmetic}
    for index, (name, build) in enumerate(networks.items()):
        if sys.argv[1:] and name not in sys.argv:
            continue
        torch.manual_seed(1 + index)
        model = build()
        generator = torch.Generator().manual_seed(101 + index)
        batches = [b.float().double() if b.is_floating_point() else b for b in type(model).batches(generator)]
        start = {key: value.float() for key, value in state(model).items()}
        exact, single = run(build, start, batches, torch.float64), run(build, start, batches, torch.float32)
        arrays = {"parameter/" + key: value for key, value in start.items()}
        for slot, batch in zip(("input", "target"), batches):
            arrays[slot] = batch.float() if batch.is_floating_point() else batch.int()
        arrays.update(exact)
        write(os.path.join(here, name + ".golden"), arrays)
        report(name, exact, single)


if __name__ == "__main__":
    main()
