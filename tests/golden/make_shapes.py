#!/usr/bin/env python3
"""Makes shapes.txt: the names and shapes of the parameters of public PyTorch networks, at their usual sizes.

    python3 tests/golden/make_shapes.py     # any PyTorch, torchvision, transformers, minGRU-pytorch; run it by hand and commit the result

tests/train/test_pytorch_rows.c and test_export.c read them: a line "NETWORK", then a line "  NAME DIM..." per parameter.
"""
import os

import torch
from minGRU_pytorch.minLM import minLM
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from make_images import Unet

V, H = 256, 24


class Language(nn.Module):
    """An embedding, recurrent layers and a head."""

    def __init__(self, cell=nn.LSTM, tied=False, bias=True, **flags):
        super().__init__()
        self.embedding = nn.Embedding(V, H)
        self.rnn = cell(H, H, num_layers=2, bias=bias, **flags)
        self.head = nn.Linear(flags.get("proj_size", H), V, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight


class Mnist(nn.Module):
    """The network of PyTorch's MNIST example."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


class Adding(nn.Module):
    """Both directions, one number per sample: the adding problem."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, H, num_layers=2, bidirectional=True), nn.Linear(2 * H, 1)


class NanoGpt(nn.Module):
    """The state_dict of nanoGPT's GPT: nn.Linear where Hugging Face has Conv1D, and the tied head twice."""

    def __init__(self, layers=2, positions=64, bias=True):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(V, H), "wpe": nn.Embedding(positions, H), "h": nn.ModuleList(
            nn.ModuleDict({
                "ln_1": nn.LayerNorm(H, bias=bias),
                "attn": nn.ModuleDict({"c_attn": nn.Linear(H, 3 * H, bias), "c_proj": nn.Linear(H, H, bias)}),
                "ln_2": nn.LayerNorm(H, bias=bias),
                "mlp": nn.ModuleDict({"c_fc": nn.Linear(H, 4 * H, bias), "c_proj": nn.Linear(4 * H, H, bias)})})
            for _ in range(layers)), "ln_f": nn.LayerNorm(H, bias=bias)})
        self.lm_head = nn.Linear(H, V, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight


def gpt2(tied):
    return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=64, n_embd=H, n_layer=2, n_head=2, tie_word_embeddings=tied))


NETWORKS = {
    "lstm": lambda: Language(),
    "gru": lambda: Language(nn.GRU),
    "rnn": lambda: Language(nn.RNN),
    "lstm proj_size": lambda: Language(proj_size=5),
    "lstm bias=False": lambda: Language(bias=False),
    "lstm bidirectional": Adding,
    "lstm tied": lambda: Language(tied=True),
    "gpt2": lambda: gpt2(True),
    "gpt2 untied": lambda: gpt2(False),
    "mamba": lambda: MambaForCausalLM(MambaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=2)),
    "minGRU enable_conv": lambda: minLM(num_tokens=V, dim=H, depth=2, enable_conv=True),
    "minGRU": lambda: minLM(num_tokens=V, dim=H, depth=2),
    "minLSTM": lambda: minLM(num_tokens=V, dim=H, depth=2, use_lstm=True),
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "mnist": Mnist,
    "mlp": lambda: nn.Sequential(nn.Linear(784, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, 10)),
    "unet bilinear": lambda: Unet(3, 2, 4, 64, True),
    "unet": lambda: Unet(3, 2, 4, 64, False),
}


def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes.txt"), "w") as file:
        for name, build in NETWORKS.items():
            print(name, file=file)
            with torch.device("meta"):
                for parameter, value in build().named_parameters():
                    print(" ", parameter.removeprefix("transformer."), *value.shape, file=file)
        for bias in (True, False):  # train/test_export.c
            print("nanogpt" if bias else "nanogpt bias=False", file=file)
            for parameter, value in NanoGpt(bias=bias).state_dict().items():
                print(" ", parameter, *value.shape, file=file)


if __name__ == "__main__":
    main()
