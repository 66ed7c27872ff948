#!/usr/bin/env python3
"""Trains sixteen programs that people learn PyTorch from, with PyTorch and with Remat, and compares losses, weights, CPU time and memory.

    bench/ports.py [--python=PYTHON] [--only=NAME,...] [--quick] [--threads=1]

Each program is a class below: its network in PyTorch with the names of its original, its batches, and the flags of `remat train` that do the
same. PyTorch draws the initial weights, and Remat starts from them (--init). Both read the same samples in the same order. Data are made here,
or come from examples/data. Dropout is 0, because the two draw other random numbers. --quick takes a quarter of the steps.

  - loss: of the last step. difference: the largest of any step, relative to PyTorch's loss. PyTorch's own: the same between PyTorch and
    PyTorch in double, from the same weights: what rounding alone does to this program.
  - weights: the norm of the difference of all weights after the last step, relative to the norm of the weights. Remat's file has the names
    and shapes of PyTorch's state_dict.
  - CPU: seconds of all threads and ranks. PyTorch's begin after the first step, which loads parts of it; Remat's are those of whole processes.
  - memory: the growth of a process of PyTorch from its import to its peak, and the peak of a whole process of Remat; with ranks, of rank 0.

A port fails if its difference is above 1e-4 and above three times PyTorch's own. Needs build/release, and a Python with PyTorch, NumPy and
safetensors: --python, or $REMAT_TORCH_PYTHON, or this interpreter.
"""
import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REMAT = os.path.join(ROOT, "build/release/remat")
TEXT = os.path.join(ROOT, "examples/data/shakespeare.txt")
PORTS = {}


def port(name, row):
    """Registers a class: its name in --only, and its row of README's table."""

    def register(cls):
        cls.name, cls.row = name, row
        PORTS[name] = cls
        return cls

    return register


class Port:
    steps, batch, ranks = 40, 8, 1
    lr, optimizer, clip = 1e-3, "adam", 0
    names = "huggingface"  # of `remat export`: what Remat's own names are

    def __init__(self, folder):
        import numpy

        self.folder, self.numpy = folder, numpy
        self.random = numpy.random.default_rng(1)
        self.flags = [f"--batch={self.batch}", f"--optimizer={self.optimizer}", f"--lr={self.lr}", f"--clip-grad-norm={self.clip}"]
        self.flags += ["--no-shuffle", "--log-every=1000000"] + ([f"--devices=cpu:{self.ranks}"] if self.ranks > 1 else [])
        self.describe()

    # For the classes: sets self.flags and the data; a module; the loss of the rows of one step's batch.
    def describe(self): ...
    def model(self): ...
    def loss(self, model, step, rows): ...

    def file(self, name, array):
        self.numpy.save(os.path.join(self.folder, name), array)
        return os.path.join(self.folder, name)

    def samples(self, step, rank):
        """The indices of the samples of a rank's batch: DistributedSampler's, not shuffled."""
        first = step * self.batch * self.ranks
        return list(range(first + rank, first + self.batch * self.ranks, self.ranks))

    def tensor(self, array):
        import torch

        tensor = torch.from_numpy(self.numpy.ascontiguousarray(array))
        return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor

    def step(self, loss, parameters, optimizer):
        import torch

        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip:  # clip_grad_norm_, with the norm in double: in float it is off by 1e-4, which a rate of 20 makes visible
            gradients = [p.grad for p in parameters]
            norm = sum(g.double().square().sum() for g in gradients).sqrt()
            for g in gradients:
                g.mul_(min(1.0, self.clip / (norm.item() + 1e-6)))
        optimizer.step()

    def wrap(self, model):
        return model


# ---- Texts -----------------------------------------------------------------------------------------------------------


class Language(Port):
    """Windows of a text, one after the other."""

    seq_len, hidden, layers, cell, tokenizer, vocabulary, tied = 64, 96, 1, "LSTM", None, 256, False

    def tokens(self):
        with open(TEXT, "rb") as file:
            return self.numpy.frombuffer(file.read(), dtype=self.numpy.uint8).astype(self.numpy.int64)

    def describe(self):
        self.text = self.tokens()
        self.flags += [f"--data={TEXT}", "--task=lm", f"--seq-len={self.seq_len}", f"--model={self.cell.lower()}", f"--layers={self.layers}",
                       f"--hidden={self.hidden}"]
        self.flags += [f"--tokenizer={self.tokenizer}"] if self.tokenizer else []
        self.flags += ["--tie-embeddings"] if self.tied else []

    def model(self):
        from torch import nn

        class Model(nn.Module):
            def __init__(self, port):
                super().__init__()
                self.embedding = nn.Embedding(port.vocabulary, port.hidden)
                self.rnn = getattr(nn, port.cell)(port.hidden, port.hidden, num_layers=port.layers)
                self.head = nn.Linear(port.hidden, port.vocabulary)
                if port.tied:
                    self.head.weight = self.embedding.weight

            def forward(self, x, state=None):
                y, state = self.rnn(self.embedding(x), state)
                return self.head(y), state

        return Model(self)

    def windows(self, rows):
        """Inputs and targets, (T,B)."""
        at = self.numpy.array(rows)[None] * self.seq_len + self.numpy.arange(self.seq_len)[:, None]
        return self.tensor(self.text[at]), self.tensor(self.text[at + 1])

    def loss(self, model, step, rows):
        from torch.nn.functional import cross_entropy

        x, y = self.windows(rows)
        return cross_entropy(model(x)[0].flatten(0, 1), y.flatten())


@port("char-rnn", "nn.LSTM, nn.GRU, nn.RNN")
class CharRnn(Language):
    """Karpathy's char-rnn: characters, two layers, gradients limited."""

    layers, optimizer, lr, tokenizer = 2, "rmsprop", 2e-3, "chars"

    def tokens(self):
        text = open(TEXT, encoding="utf-8").read()
        number = {c: i for i, c in enumerate(sorted(set(text)))}
        self.vocabulary = len(number)
        return self.numpy.array([number[c] for c in text])


@port("word_language_model", "truncated BPTT: hidden.detach() between windows")
class WordLanguageModel(Language):
    """PyTorch's example: words, states from batch to batch, tied weights, SGD of 20 with gradients limited to 0.25."""

    seq_len, layers, optimizer, lr, clip, tokenizer, tied = 35, 2, "sgd", 20, 0.25, "words", True

    def tokens(self):
        words = [w for line in open(TEXT, encoding="utf-8") for w in line.split() + ["<eos>"]]
        number = {}
        for w in words:
            number.setdefault(w, len(number))
        self.vocabulary = len(number) + ("<unk>" not in number)
        return self.numpy.array([number[w] for w in words])

    def describe(self):
        super().describe()
        self.flags += ["--stateful"]
        self.state = None

    def samples(self, step, rank):
        row = (len(self.text) - 1) // self.seq_len // self.batch  # windows of a row
        return [r * row + step for r in range(self.batch)]

    def loss(self, model, step, rows):
        from torch.nn.functional import cross_entropy

        x, y = self.windows(rows)
        logits, state = model(x, self.state)
        self.state = tuple(s.detach() for s in state)
        return cross_entropy(logits.flatten(0, 1), y.flatten())


@port("dl-demos", "nn.LSTM, nn.GRU, nn.RNN")
class DlDemos(Language):
    """SingleZombie's DL-Demos: a language model of letters by a GRU."""

    cell, seq_len, hidden = "GRU", 32, 64


@port("checkpointed-lstm", "torch.utils.checkpoint over chunks of time")
class CheckpointedLstm(Language):
    """An LSTM over a long window, whose activations are recomputed in chunks of time."""

    seq_len, batch, steps, chunks, hidden = 4000, 2, 12, 16, 128

    def describe(self):
        super().describe()
        self.flags += [f"--checkpoint-segments={self.chunks}"]

    def loss(self, model, step, rows):
        import torch
        from torch.nn.functional import cross_entropy
        from torch.utils.checkpoint import checkpoint

        def chunk(x, y, state):
            logits, state = model(x, state)
            return cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"), *state

        (x, y), total = self.windows(rows), 0
        state = (torch.zeros(1, len(rows), self.hidden),) * 2
        for a, b in zip(x.chunk(self.chunks), y.chunk(self.chunks)):
            part, *state = checkpoint(chunk, a, b, tuple(state), use_reentrant=False)
            total = total + part
        return total / y.numel()


@port("mingru", "minLM(...), whose default is enable_conv=False")
class MinGru(Language):
    """lucidrains' minGRU-pytorch: minLM in its defaults, with the recurrence as a scan in log space."""

    seq_len, layers, hidden = 128, 2, 64

    def describe(self):
        self.cell = "mingru"
        super().describe()
        self.flags += ["--no-conv"]

    def model(self):
        import torch
        from torch import nn
        from torch.nn import functional as F

        class Gru(nn.Module):
            def __init__(self, dim):
                super().__init__()
                inner = int(dim * 1.5)
                self.to_hidden_and_gate = nn.Linear(dim, 2 * inner, bias=False)
                self.to_out = nn.Linear(inner, dim, bias=False)

            def forward(self, x):  # (B,T,C)
                hidden, gate = self.to_hidden_and_gate(x).chunk(2, -1)
                decay = -F.softplus(gate)
                values = -F.softplus(-gate) + torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
                total = decay.cumsum(1)
                return self.to_out((total + (values - total).logcumsumexp(1)).exp())

        class Model(nn.Module):
            def __init__(self, port):
                super().__init__()
                dim = port.hidden
                self.token_emb = nn.Embedding(port.vocabulary, dim)
                self.layers = nn.ModuleList(
                    nn.ModuleList([nn.Identity(), nn.RMSNorm(dim), Gru(dim), nn.RMSNorm(dim),
                                   nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))])
                    for _ in range(port.layers))
                self.norm, self.to_logits = nn.RMSNorm(dim), nn.Linear(dim, port.vocabulary, bias=False)

            def forward(self, x):
                y = self.token_emb(x.T)
                for _, norm, gru, ff_norm, ff in self.layers:
                    y = y + gru(norm(y))
                    y = y + ff(ff_norm(y))
                return self.to_logits(self.norm(y)).transpose(0, 1), None

        return Model(self)


@port("nanogpt", "nanoGPT's GPT")
class NanoGpt(Language):
    """Karpathy's nanoGPT on characters, which are bytes here, without biases, as its train.py."""

    seq_len, layers, hidden, heads, optimizer, names = 64, 3, 96, 3, "adamw", "nanogpt"

    def describe(self):
        self.cell = "gpt2"
        super().describe()
        self.flags += [f"--heads={self.heads}", "--weight-decay=0.1"]

    def model(self):
        from torch import nn
        from torch.nn import functional as F

        class Block(nn.Module):
            def __init__(self, c, heads):
                super().__init__()
                self.ln_1, self.ln_2 = nn.LayerNorm(c, bias=False), nn.LayerNorm(c, bias=False)
                self.attn, self.mlp, self.heads = nn.Module(), nn.Module(), heads
                self.attn.c_attn, self.attn.c_proj = nn.Linear(c, 3 * c, bias=False), nn.Linear(c, c, bias=False)
                self.mlp.c_fc, self.mlp.c_proj = nn.Linear(c, 4 * c, bias=False), nn.Linear(4 * c, c, bias=False)

            def forward(self, x):
                q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.attn.c_attn(self.ln_1(x)).chunk(3, 2))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.attn.c_proj(y.transpose(1, 2).flatten(2))
                return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))

        class Model(nn.Module):
            def __init__(self, port):
                super().__init__()
                self.transformer, c = nn.Module(), port.hidden
                self.transformer.wte, self.transformer.wpe = nn.Embedding(port.vocabulary, c), nn.Embedding(port.seq_len, c)
                self.transformer.h = nn.ModuleList(Block(c, port.heads) for _ in range(port.layers))
                self.transformer.ln_f, self.lm_head = nn.LayerNorm(c, bias=False), nn.Linear(c, port.vocabulary, bias=False)
                nn.init.normal_(self.lm_head.weight, std=0.02)
                self.transformer.wte.weight = self.lm_head.weight

            def forward(self, x):
                y = self.transformer.wte(x.T) + self.transformer.wpe.weight
                for block in self.transformer.h:
                    y = block(y)
                return self.lm_head(self.transformer.ln_f(y)).transpose(0, 1), None

        return Model(self)


# ---- Images ----------------------------------------------------------------------------------------------------------


class Images(Port):
    """Noise around a pattern for each class."""

    channels, side, classes, mean, deviation = 1, 28, 10, 0.1307, 0.3081

    def describe(self):
        count, size = self.steps * self.batch * self.ranks, (self.channels, self.side, self.side)
        self.labels = self.random.integers(0, self.classes, count).astype(self.numpy.int32)
        pattern = self.random.integers(0, 160, (self.classes, *size))
        self.images = (pattern[self.labels] + self.random.integers(0, 96, (count, *size))).astype(self.numpy.uint8)
        self.flags += ["--task=classify", f"--data={self.file('images.npy', self.images)}", f"--labels={self.file('labels.npy', self.labels)}",
                       f"--normalize={self.mean}:{self.deviation}"] + self.network

    def inputs(self, rows):
        return (self.tensor(self.images[rows].astype("f4")) / 255 - self.mean) / self.deviation

    def loss(self, model, step, rows):
        from torch.nn.functional import cross_entropy

        return cross_entropy(model(self.inputs(rows)), self.tensor(self.labels[rows]).long())


@port("mnist", "PyTorch's MNIST example; an MLP")
class Mnist(Images):
    """PyTorch's example: two convolutions, Adadelta."""

    optimizer, lr, network, batch, steps = "adadelta", 1, ["--model=cnn"], 32, 20

    def model(self):
        import torch
        from torch import nn
        from torch.nn import functional as F

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
                self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

            def forward(self, x):
                x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
                return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))

        return Model()


@port("mnist_rnn", "nn.LSTM, nn.GRU, nn.RNN")
class MnistRnn(Images):
    """PyTorch's example: an image as a sequence of its rows."""

    network, batch = ["--model=lstm", "--layers=1", "--hidden=64"], 32

    def describe(self):
        super().describe()
        rows = ((self.images[:, 0] / 255.0 - self.mean) / self.deviation).astype(self.numpy.float32)
        self.flags = [f for f in self.flags if not f.startswith(("--data", "--normalize"))] + [f"--data={self.file('rows.npy', rows)}"]
        self.images = rows

    def inputs(self, rows):
        return self.tensor(self.images[rows])

    def model(self):
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.head = nn.LSTM(28, 64, batch_first=True), nn.Linear(64, 10)

            def forward(self, x):
                return self.head(self.rnn(x)[0][:, -1])

        return Model()


@port("imagenet", "torchvision.models.resnet18, 34, 50")
class ImageNet(Images):
    """PyTorch's example: torchvision's resnet18, SGD with momentum and weight decay, the rate of a batch of 8."""

    channels, side, classes, batch, steps, optimizer, lr = 3, 64, 20, 8, 6, "sgd", 0.1 * 8 / 256
    network = ["--model=resnet18", "--momentum=0.9", "--weight-decay=1e-4"]

    def model(self):
        from torch import nn
        from torch.nn import functional as F

        class Block(nn.Module):
            def __init__(self, inputs, outputs, stride):
                super().__init__()
                self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
                self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
                if stride > 1:
                    self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

            def forward(self, x):
                y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
                return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))

        class Resnet(nn.Module):
            def __init__(self, classes):
                super().__init__()
                self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
                for i in range(4):
                    width, stride = 64 << i, 1 if i == 0 else 2
                    setattr(self, f"layer{i + 1}", nn.Sequential(Block(width // stride, width, stride), Block(width, width, 1)))
                self.fc = nn.Linear(512, classes)

            def forward(self, x):
                x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
                for i in range(4):
                    x = getattr(self, f"layer{i + 1}")(x)
                return self.fc(x.mean((2, 3)))

        return Resnet(self.classes)


class Mlp(Images):
    network = ["--model=mlp", "--layers=2", "--hidden=64"]

    def inputs(self, rows):
        return super().inputs(rows).flatten(1)

    def model(self):
        from torch import nn

        return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def wrap(self, model):
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)


@port("ddp", "DistributedDataParallel(model)")
class Ddp(Mlp):
    """PyTorch's tutorial on DistributedDataParallel: two processes."""

    ranks, optimizer, lr = 2, "sgd", 0.1


@port("horovod", "fp16_compress_hook; linear scaling of the learning rate")
class Horovod(Mlp):
    """Horovod's features: learning rate times the number of ranks, gradients sent in fp16, which rounds each rank's."""

    ranks, optimizer, lr = 2, "sgd", 0.05

    def describe(self):
        super().describe()
        self.flags += ["--scale-lr=linear", f"--base-batch={self.batch}", "--grad-compress=fp16"]
        self.lr *= self.ranks

    def wrap(self, model):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model = super().wrap(model)
        model.register_comm_hook(None, fp16_compress_hook)
        return model


@port("pytorch-unet", "UNet(3, 2, bilinear=True) (milesial)")
class PytorchUnet(Port):
    """milesial's Pytorch-UNet: a folder of images and one of masks, a class for each pixel, cross entropy and Dice loss."""

    batch, steps, side, levels, width, classes = 2, 6, 64, 3, 16, 2

    def describe(self):
        count, s = self.steps * self.batch, self.side
        row, column = self.numpy.mgrid[:s, :s]
        center = self.random.integers(16, s - 16, (count, 2))
        far = (row[None] - center[:, :1, None]) ** 2 + (column[None] - center[:, 1:, None]) ** 2
        self.masks = (far < 150).astype(self.numpy.int32)
        noise = self.random.integers(0, 156, (count, 3, s, s))
        self.images = (noise + 100 * self.masks[:, None]).astype(self.numpy.uint8)
        for kind, planes in (("imgs", self.images.transpose(0, 2, 3, 1)), ("masks", 255 * self.masks.astype(self.numpy.uint8))):
            os.makedirs(os.path.join(self.folder, kind), exist_ok=True)
            for i, plane in enumerate(planes):
                self.png(os.path.join(self.folder, kind, f"{i:04}{'_mask' * (kind == 'masks')}.png"), plane)
        self.flags += ["--task=classify", f"--data={self.folder}/imgs", f"--labels={self.folder}/masks", "--model=unet", "--loss=joint-dice",
                       f"--layers={self.levels}", f"--hidden={self.width}"]

    def png(self, path, plane):
        import struct
        import zlib

        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        rows = b"".join(b"\0" + row.tobytes() for row in plane)
        header = struct.pack(">IIBBBBB", plane.shape[1], plane.shape[0], 8, 2 if plane.ndim == 3 else 0, 0, 0, 0)
        with open(path, "wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))

    def model(self):
        import torch
        from torch import nn

        class Twice(nn.Module):
            def __init__(self, width, middle, out):
                super().__init__()
                self.double_conv = nn.Sequential(
                    nn.Conv2d(width, middle, 3, padding=1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
                    nn.Conv2d(middle, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

            def forward(self, x):
                return self.double_conv(x)

        class Unet(nn.Module):
            def __init__(self, levels, width, classes):
                super().__init__()
                widths = [width << min(level, levels - 1) for level in range(levels + 1)]
                self.levels, self.inc, self.outc = levels, Twice(3, width, width), nn.Module()
                for level in range(1, levels + 1):
                    down, up, meets = nn.Module(), nn.Module(), widths[levels - level]
                    down.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), Twice(widths[level - 1], widths[level], widths[level]))
                    up.conv = Twice(2 * meets, meets, meets // 2 if level < levels else meets)
                    setattr(self, f"down{level}", down), setattr(self, f"up{level}", up)
                self.outc.conv = nn.Conv2d(width, classes, 1)

            def forward(self, x):
                made = [self.inc(x)]
                for level in range(1, self.levels + 1):
                    made.append(getattr(self, f"down{level}").maxpool_conv(made[-1]))
                x = made.pop()
                for level in range(1, self.levels + 1):
                    x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
                    x = getattr(self, f"up{level}").conv(torch.cat((made.pop(), x), 1))
                return self.outc.conv(x)

        return Unet(self.levels, self.width, self.classes)

    def loss(self, model, step, rows):
        from torch.nn.functional import cross_entropy, one_hot

        logits, masks = model(self.tensor(self.images[rows].astype("f4")) / 255), self.tensor(self.masks[rows]).long()
        found, true = logits.softmax(1), one_hot(masks, self.classes).permute(0, 3, 1, 2).to(logits.dtype)
        dice = (2 * (found * true).sum() + 1e-6) / (found.sum() + true.sum() + 1e-6)  # dice_loss(multiclass=True)
        return cross_entropy(logits, masks) + 1 - dice


# ---- Sequences -------------------------------------------------------------------------------------------------------


class Sequences(Port):
    """Samples of numbers (N,T,F) for an LSTM; the flags of the task."""

    timesteps, features, hidden, layers, outputs, both = 100, 20, 48, 1, 11, False

    def model(self):
        from torch import nn

        class Model(nn.Module):
            def __init__(self, port):
                super().__init__()
                self.rnn = nn.LSTM(port.features, port.hidden, num_layers=port.layers, bidirectional=port.both, batch_first=True)
                self.head = nn.Linear((1 + port.both) * port.hidden, port.outputs)

            def forward(self, x):
                return self.head(self.rnn(x)[0])

        return Model(self)

    def describe(self):
        count = self.steps * self.batch
        self.data, self.answers, self.task = self.make(count)
        self.flags += self.task + [f"--data={self.file('data.npy', self.data)}", f"--labels={self.file('labels.npy', self.answers)}",
                                   "--model=lstm", f"--layers={self.layers}", f"--hidden={self.hidden}"]
        self.flags += ["--bidirectional"] if self.both else []


@port("time_sequence_prediction", "mse_loss, l1_loss, huber_loss, BCEWithLogitsLoss")
class TimeSequencePrediction(Sequences):
    """PyTorch's example: the next number of a sine wave, by two layers. Adam instead of L-BFGS, which Remat does not have."""

    features, outputs, layers, hidden, lr = 1, 1, 2, 51, 1e-2

    def make(self, count):
        t = self.numpy.arange(self.timesteps + 1)[None] + self.random.integers(-80, 80, (count, 1))
        wave = self.numpy.sin(t / 20.0).astype(self.numpy.float32)[..., None]
        return wave[:, :-1], wave[:, 1:], ["--task=regress"]

    def loss(self, model, step, rows):
        from torch.nn.functional import mse_loss

        return mse_loss(model(self.tensor(self.data[rows])), self.tensor(self.answers[rows]))


@port("ctc", "nn.CTCLoss() on log_softmax(logits)")
class Ctc(Sequences):
    """nn.CTCLoss's page, with an LSTM before it."""

    labels = 12

    def make(self, count):
        answers = self.random.integers(1, self.outputs, (count, self.labels)).astype(self.numpy.int32)
        place = self.numpy.arange(self.timesteps) * self.labels // self.timesteps
        pattern = self.random.standard_normal((self.outputs, self.features))
        data = pattern[answers[:, place]] + 0.5 * self.random.standard_normal((count, self.timesteps, self.features))
        return data.astype(self.numpy.float32), answers, ["--task=transcribe", f"--classes={self.outputs}"]

    def loss(self, model, step, rows):
        import torch
        from torch.nn.functional import ctc_loss

        logits, n = model(self.tensor(self.data[rows])).transpose(0, 1), len(rows)
        return ctc_loss(logits.log_softmax(2), self.tensor(self.answers[rows]), torch.full((n,), self.timesteps), torch.full((n,), self.labels))


@port("deepspeech", "bidirectional=True; nn.CTCLoss()")
class DeepSpeech(Ctc):
    """SeanNaren's deepspeech.pytorch, without its convolutions: two bidirectional layers, CTC, Adam with gradients limited."""

    both, layers, steps, clip, optimizer = True, 2, 20, 400, "adam"


@port("seq2seq", "an encoder and a decoder with attention")
class Seq2Seq(Port):
    """PyTorch's translation tutorial with Luong's attention: lines of letters, to be reversed."""

    hidden, letters, length = 48, 12, 10

    def describe(self):
        count = self.steps * self.batch
        words = self.random.integers(0, self.letters, (count, self.length))
        self.sources, self.targets = words, words[:, ::-1]
        for name, lines in (("source.txt", self.sources), ("target.txt", self.targets)):
            with open(os.path.join(self.folder, name), "w") as file:
                file.writelines("".join("abcdefghijkl"[i] for i in line) + "\n" for line in lines)
        with open(os.path.join(self.folder, "letters.txt"), "w") as file:
            file.writelines(c + "\n" for c in "abcdefghijkl")
        source, target, vocabulary = (os.path.join(self.folder, n) for n in ("source.txt", "target.txt", "letters.txt"))
        self.flags += ["--task=seq2seq", f"--data={source}", f"--labels={target}", f"--tokenizer={vocabulary}", "--model=lstm", "--layers=1",
                       f"--hidden={self.hidden}"]

    def model(self):
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self, port):
                super().__init__()
                h, classes = port.hidden, port.letters + 1
                self.embedding = nn.Embedding(classes + 1, h)
                self.rnn, self.decoder_rnn = nn.LSTM(h, h), nn.LSTM(h, h)
                self.attention, self.combine = nn.Linear(h, h, bias=False), nn.Linear(2 * h, h, bias=False)
                self.head = nn.Linear(h, classes)

            def forward(self, source, previous):
                e, state = self.rnn(self.embedding(source))
                h, _ = self.decoder_rnn(self.embedding(previous), state)
                weight = torch.einsum("tbe,sbe->tbs", self.attention(h), e).softmax(2)
                return self.head(torch.tanh(self.combine(torch.cat((torch.einsum("tbs,sbe->tbe", weight, e), h), 2))))

        return Model(self)

    def loss(self, model, step, rows):
        import torch
        from torch.nn.functional import cross_entropy, pad

        end, begin = self.letters, self.letters + 1
        source = pad(self.tensor(self.sources[rows]), (0, 1), value=end).T
        target = self.tensor(self.targets[rows])
        previous, wanted = pad(target, (1, 0), value=begin).T, pad(target, (0, 1), value=end).T
        return cross_entropy(model(source, previous).flatten(0, 1), wanted.flatten())


# ---- Running ---------------------------------------------------------------------------------------------------------


def resident_mib(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":")) / 1024


def arrays_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()
            if not name.endswith("num_batches_tracked") and not (name == "head.weight" and "embedding.weight" in model.state_dict()
                                                                 and model.head.weight is model.embedding.weight)}


def optimizer_of(port, model):
    import torch

    decay = next((float(f.split("=")[1]) for f in port.flags if f.startswith("--weight-decay=")), 0)
    momentum = {"momentum": 0.9} if "--momentum=0.9" in port.flags else {}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop,
            "adadelta": torch.optim.Adadelta}[port.optimizer]
    return kind(model.parameters(), lr=port.lr, weight_decay=decay, **momentum)


def torch_process(job):
    """One rank of PyTorch: draws weights, trains, prints a line of JSON."""
    import torch
    import torch.distributed as dist
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64 if job["double"] else torch.float32)
    before = resident_mib("VmRSS")
    port, rank = make(job), int(os.environ.get("RANK", 0))
    if port.ranks > 1:
        dist.init_process_group("gloo")
    model, losses, initial = port.model(), [], os.path.join(job["folder"], "initial.safetensors")
    if job["double"]:
        model.load_state_dict({name: value.double() for name, value in load_file(initial).items()}, strict=False)
    elif rank == 0:
        save_file(arrays_of(model), initial)
    wrapped, optimizer = port.wrap(model), optimizer_of(port, model)
    for step in range(port.steps):
        loss = port.loss(wrapped, step, port.samples(step, rank))
        port.step(loss, list(model.parameters()), optimizer)
        loss = loss.detach()
        if port.ranks > 1:
            dist.all_reduce(loss)
        losses.append(loss.item() / port.ranks)
        start = time.process_time() if step == 0 else start
    cpu = time.process_time() - start
    if rank == 0 and not job["double"]:
        save_file(arrays_of(model), os.path.join(job["folder"], "final.safetensors"))
    print(json.dumps({"losses": losses, "cpu": cpu, "mib": resident_mib("VmHWM") - before}), flush=True)
    if port.ranks > 1:
        dist.destroy_process_group()


def make(job):
    cls = PORTS[job["name"]]
    cls.steps = max(3, cls.steps // 4) if job["quick"] else cls.steps
    return cls(job["folder"])


def run_torch(job, ranks):
    with socket.socket() as holder:  # bound, so that nobody else gets the port; rank 0, which sets SO_REUSEADDR, too, may listen there
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        address, started = str(holder.getsockname()[1]), []
        for rank in range(ranks):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=address,
                               OMP_NUM_THREADS=str(job["threads"]))
            started.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), "--job", json.dumps(job)], env=environment,
                                            stdout=subprocess.PIPE, text=True))
        out = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{job['name']}: PyTorch's process failed")
    out = [json.loads(text.splitlines()[-1]) for text in out]
    return {"losses": out[0]["losses"], "cpu": sum(o["cpu"] for o in out), "mib": out[0]["mib"]}


def run_remat(job, port):
    states, metrics = os.path.join(job["folder"], "states"), os.path.join(job["folder"], "metrics")
    command = [REMAT, "train", *port.flags, f"--steps={port.steps}", f"--init={job['folder']}/initial.safetensors", f"--save={states}",
               f"--metrics={metrics}", f"--threads={job['threads']}"]
    with open(os.path.join(job["folder"], "log"), "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if status:
            log.seek(0)
            sys.exit(f"{' '.join(command)}\n{log.read()}")
    with open(metrics) as file:
        events = [json.loads(line) for line in file]
    losses, weights = [event["loss"] for event in events if event["event"] == "step"], os.path.join(job["folder"], "remat.safetensors")
    subprocess.run([REMAT, "export", f"--resume={states}", f"--names={port.names}", f"--out={weights}"], check=True, stdout=subprocess.DEVNULL)
    return {"losses": losses, "cpu": usage.ru_utime + usage.ru_stime, "mib": events[-1]["rss_peak_bytes"] / 2**20, "weights": weights}


def compare_weights(port, job, remat):
    """The norm of the difference, relative to that of the weights. Names and shapes must be the same."""
    from safetensors.numpy import load_file

    ours, theirs = load_file(remat["weights"]), load_file(os.path.join(job["folder"], "final.safetensors"))
    shapes = [{name: array.shape for name, array in arrays.items()} for arrays in (ours, theirs)]
    if shapes[0] != shapes[1]:
        sys.exit(f"{port.name}: names or shapes differ: {set(shapes[0].items()) ^ set(shapes[1].items())}")
    apart, size = (sum(float((array.astype("f8") ** 2).sum()) for array in arrays) ** 0.5
                   for arrays in ([ours[name] - theirs[name] for name in theirs], theirs.values()))
    return apart / size


def apart(losses, others):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others))


def run(name, args):
    with tempfile.TemporaryDirectory() as folder:
        job = dict(name=name, folder=folder, threads=args.threads, quick=args.quick, double=False)
        port = make(job)
        torch, exact = (run_torch(dict(job, double=double), port.ranks) for double in (False, True))
        remat = run_remat(job, port)
        if len(remat["losses"]) != len(torch["losses"]):
            sys.exit(f"{name}: Remat made {len(remat['losses'])} steps, PyTorch {len(torch['losses'])}")
        difference, rounding = apart(remat["losses"], torch["losses"]), apart(torch["losses"], exact["losses"])
        weights = compare_weights(port, job, remat)
        print(f"| {name} | {port.steps} | {torch['losses'][-1]:.5f} | {remat['losses'][-1]:.5f} | {difference:.0e} | {rounding:.0e} | {weights:.0e} | "
              f"{torch['cpu']:.1f} | {remat['cpu']:.1f} | {torch['mib']:.0f} | {remat['mib']:.0f} |", flush=True)
        return difference <= max(1e-4, 3 * rounding)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("REMAT_TORCH_PYTHON", sys.executable))
    parser.add_argument("--only", default=",".join(PORTS), help="names: " + ", ".join(PORTS))
    parser.add_argument("--quick", action="store_true", help="a quarter of the steps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return torch_process(json.loads(args.job))
    if os.path.realpath(args.python) != os.path.realpath(sys.executable):
        os.execv(args.python, [args.python, *sys.argv])
    print("| program | steps | loss: PyTorch | Remat | difference | PyTorch's own | weights | CPU s: PyTorch | Remat | memory MiB: PyTorch | Remat |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    failed = [name for name in args.only.split(",") if not run(name, args)]
    if failed:
        sys.exit(f"the losses of {', '.join(failed)} differ by more than rounding")


if __name__ == "__main__":
    main()
