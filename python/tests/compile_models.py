"""Small models of the kinds that remat.compile translates, written as PyTorch's users write them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

V = 50


def per_token(out, target):
    return F.cross_entropy(out.flatten(0, 1), target.flatten(), ignore_index=0)


class LanguageModel(nn.Module):
    def __init__(self, layer=nn.LSTM, batch_first=True):
        super().__init__()
        self.embedding = nn.Embedding(V, 16)
        self.rnn = layer(16, 32, 2, batch_first=batch_first)
        self.head = nn.Linear(32, V)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


class Tagger(nn.Module):
    """A padded batch of sentences, both directions."""

    def __init__(self, layer=nn.LSTM, classify=False):
        super().__init__()
        self.classify = classify
        self.embedding = nn.Embedding(V, 16, padding_idx=0)
        self.rnn = layer(16, 24, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 9)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        y, h = self.rnn(packed)
        if self.classify:
            return self.head(torch.cat([h[-2], h[-1]], 1))
        return self.head(pad_packed_sequence(y, batch_first=True, total_length=tokens.shape[1])[0])


class Classifier(nn.Module):
    """One result a sequence, from what `how` names."""

    def __init__(self, how):
        super().__init__()
        self.how, self.rnn, self.head = how, nn.GRU(5, 16, 2, batch_first=True), nn.Linear(16, 7)

    def forward(self, x, *lengths):
        y, h = self.rnn(x)
        if self.how == "last":
            y = y[:, -1]
        elif self.how == "mean":
            y = y.mean(1)
        elif self.how == "max":
            y = y.max(1).values + y.amax(1, keepdim=True).squeeze(1)
        elif self.how == "pool":
            y = F.adaptive_max_pool1d(y.transpose(1, 2), 1).squeeze(2)
        elif self.how == "cummax":
            y = y.cummax(1).values.mean(1)
        elif self.how == "state":
            y = h[-1]
        elif self.how == "states":
            y = h.transpose(0, 1)[:, 1:].flatten(1)
        else:
            y = y[torch.arange(x.shape[0]), lengths[0] - 1]
        return self.head(y)


class Translator(nn.Module):
    """An encoder and a decoder, which starts from the encoder's state and attends over it."""

    def __init__(self, masked):
        super().__init__()
        self.masked = masked
        self.embedding = nn.Embedding(V, 16)
        self.encoder = nn.LSTM(16, 32, batch_first=True)
        self.decoder = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(64, V)

    def forward(self, source, target):
        memory, state = self.encoder(self.embedding(source))
        y, _ = self.decoder(self.embedding(target), state)
        scores = torch.bmm(y, memory.transpose(1, 2)) / 32**0.5
        if self.masked:
            scores = scores.masked_fill((source == V - 1)[:, None, :], float("-inf"))
        context = torch.bmm(torch.softmax(scores, -1), memory)
        return self.head(torch.cat([y, context], -1))


class MultiheadTranslator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, 16)
        self.encoder = nn.GRU(16, 32, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(64, 32)
        self.decoder = nn.GRU(16, 32, batch_first=True)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, V)

    def forward(self, source, target):
        memory, h = self.encoder(self.embedding(source))
        memory = self.bridge(memory)
        y, _ = self.decoder(self.embedding(target), torch.tanh(self.bridge(torch.cat([h[0], h[1]], -1))).unsqueeze(0))
        a, _ = self.attention(y, memory, memory, key_padding_mask=source == V - 1)
        return self.head(y + a)


class Encoder(nn.Module):
    """PyTorch's transformer with a table of positions."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(V, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, V)
        self.register_buffer("positions", torch.randn(100, 32))

    def forward(self, tokens):
        steps = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(steps) if self.causal else None
        x = self.embedding(tokens) * 32**0.5 + self.positions[:steps]
        return self.head(self.layers(x, mask=mask, is_causal=self.causal))


class GPT(nn.Module):
    """One layer as nanoGPT writes it, with tied weights. It returns its loss."""

    def __init__(self, explicit=False, dropout=0.0):
        super().__init__()
        self.explicit, self.dropout = explicit, dropout
        self.wte, self.wpe = nn.Embedding(V, 32), nn.Embedding(64, 32)
        self.ln_1, self.ln_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attn, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.fc, self.out = nn.Linear(32, 128), nn.Linear(128, 32)
        self.head = nn.Linear(32, V, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, tokens, targets):
        rows, steps = tokens.shape
        h = self.wte(tokens) + self.wpe(torch.arange(steps))
        q, k, v = (z.view(rows, steps, 4, 8).transpose(1, 2) for z in self.attn(self.ln_1(h)).split(32, 2))
        if self.explicit:
            scores = (q @ k.transpose(-2, -1)) * 8**-0.5
            scores = scores.masked_fill(self.mask[:, :, :steps, :steps] == 0, float("-inf"))
            y = F.dropout(F.softmax(scores, -1), self.dropout) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        h = h + self.proj(y.transpose(1, 2).contiguous().view(rows, steps, 32))
        x = self.fc(self.ln_2(h))
        x = 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))
        logits = self.head(h + self.out(x))
        return F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-1)


class TiedTagger(nn.Module):
    """Padded, with the embedding's weight as the head's."""

    def __init__(self, tied):
        super().__init__()
        self.embedding = nn.Embedding(V, 16, padding_idx=0)
        self.rnn, self.head = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, V)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, lengths):
        return self.head(self.rnn(self.embedding(tokens))[0])


class RMSNorm(nn.Module):
    """As transformers writes it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Llama(nn.Module):
    """One layer with RMS norms, rotary positions, and two heads of keys for four of queries."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm_1, self.norm_2 = nn.Embedding(V, 32), RMSNorm(32), RMSNorm(32)
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.gate, self.up, self.down, self.head = (nn.Linear(*n) for n in ((32, 48), (32, 48), (48, 32), (32, V)))

    def forward(self, tokens):
        rows, steps = tokens.shape
        h = self.embedding(tokens)
        x = self.norm_1(h)
        q = self.q(x).view(rows, steps, 4, 8).transpose(1, 2)
        k, v = (z.view(rows, steps, 2, 8).transpose(1, 2) for z in self.kv(x).chunk(2, -1))
        angles = torch.arange(steps).float()[:, None] * 500.0 ** (-torch.arange(0, 8, 2).float() / 8)
        cos, sin = (torch.cat((z, z), -1)[None, None] for z in (angles.cos(), angles.sin()))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (z[:, :, None].expand(rows, 2, 2, steps, 8).reshape(rows, 4, steps, 8) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(y.transpose(1, 2).reshape(rows, steps, 32))
        x = self.norm_2(h)
        return self.head(h + self.down(F.silu(self.gate(x)) * self.up(x)))


class Patches(nn.Module):
    """A token of the class before an image's patches, as a vision transformer has it."""

    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Linear(5, 16), nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.positions, self.head = nn.Parameter(torch.randn(1, 7, 16)), nn.Linear(16, 3)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patch(x)], 1) + self.positions
        return self.head(self.layer(x)[:, 0])


class Masked(nn.Module):
    """Attention under a mask of (rows, queries, keys) that is made from the batch; kinds of tokens are all 1."""

    def __init__(self, causal):
        super().__init__()
        self.causal, self.embedding, self.kinds = causal, nn.Embedding(V, 16), nn.Embedding(2, 16)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, V)

    def forward(self, tokens, kept):
        steps = tokens.shape[1]
        mask = kept[:, None, None, :].expand(-1, 1, steps, steps)
        return self.attend(tokens, mask & torch.ones(steps, steps, dtype=torch.bool).tril() if self.causal else mask)

    def attend(self, tokens, mask):
        rows, steps = tokens.shape
        h = self.embedding(tokens) + self.kinds(torch.ones_like(tokens[:1]).expand(rows, -1))
        q, k, v = (z.view(rows, steps, 2, 8).transpose(1, 2) for z in self.qkv(h).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, mask)
        return self.head(h + y.transpose(1, 2).reshape(rows, steps, 16))


class Frames(nn.Module):
    """A convolutional net for each frame, then an LSTM."""

    def __init__(self):
        super().__init__()
        self.conv, self.rnn, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        rows, steps = x.shape[:2]
        f = F.relu(self.conv(x.flatten(0, 1))).mean((2, 3)).view(rows, steps, -1)
        return self.head(self.rnn(f)[0][:, -1])


class Speech(nn.Module):
    """Convolutions over time, then both directions."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3, 2, 1), nn.BatchNorm1d(8)
        self.rnn, self.head = nn.LSTM(8, 16, batch_first=True, bidirectional=True), nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.rnn(F.relu(self.norm(self.conv(x))).transpose(1, 2))[0])


class DoubleConv(nn.Sequential):
    def __init__(self, a, b):
        parts = []
        for channels in (a, b):
            parts += [nn.Conv2d(channels, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        super().__init__(*parts)


class UNet(nn.Module):
    """milesial's shape, with two levels."""

    def __init__(self, bilinear):
        super().__init__()
        self.first, self.down_1 = DoubleConv(3, 8), DoubleConv(8, 16)
        self.down_2 = DoubleConv(16, 16 if bilinear else 32)
        up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.up_1 = up if bilinear else nn.ConvTranspose2d(32, 16, 2, 2)
        self.up_2 = up if bilinear else nn.ConvTranspose2d(16, 8, 2, 2)
        self.conv_1, self.conv_2 = DoubleConv(32, 8 if bilinear else 16), DoubleConv(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def join(up, conv, below, skip):
        x = up(below)
        y, z = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        return conv(torch.cat([skip, F.pad(x, [z // 2, z - z // 2, y // 2, y - y // 2])], 1))

    def forward(self, x):
        a = self.first(x)
        b = self.down_1(F.max_pool2d(a, 2))
        c = self.down_2(F.max_pool2d(b, 2))
        return self.head(self.join(self.up_2, self.conv_2, self.join(self.up_1, self.conv_1, c, b), a))
