"""remat.compile: models of Hugging Face's transformers, tiny and without dropout, against PyTorch in double."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch cannot be imported; name a Python that has it in REMAT_TORCH_PYTHON")
tr = pytest.importorskip("transformers", reason="transformers cannot be imported")

import remat  # noqa: E402
from test_compile import error  # noqa: E402

V, B, T = 50, 2, 9
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = {**SIZES, "vocab_size": V, "max_position_embeddings": 32}
GROUPED = {**TEXT, "num_key_value_heads": 1}
ENCODER = {**TEXT, **NO_DROPOUT}
PATCHES = {**SIZES, **NO_DROPOUT, "image_size": 16, "patch_size": 4, "num_labels": 3}
WINDOWS = {
    **NO_DROPOUT, "image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2],
    "drop_path_rate": 0.0, "num_labels": 3,
}  # fmt: skip
OF_TEXT = {
    "Mistral": ("ForCausalLM", {**GROUPED, "sliding_window": 4}),
    "Qwen2": ("ForCausalLM", GROUPED),
    "Gemma": ("ForCausalLM", {**GROUPED, "head_dim": 8}),
    "Gemma2": ("ForCausalLM", {**GROUPED, "head_dim": 8}),
    "Llama": (
        "ForCausalLM",
        {
            **GROUPED, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "Phi3": ("ForCausalLM", {**GROUPED, "pad_token_id": 0}),
    "Cohere": ("ForCausalLM", GROUPED),
    "Falcon": ("ForCausalLM", {**TEXT, "hidden_dropout": 0.0, "attention_dropout": 0.0}),
    "RoFormer": ("ForMaskedLM", ENCODER),
    "Phi": ("ForCausalLM", {**TEXT, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "GPTNeo": (
        "ForCausalLM",
        {
            "vocab_size": V, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]],
            "window_size": 4, "max_position_embeddings": 32, "resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0,
        },
    ),
    "Roberta": ("ForMaskedLM", ENCODER),
    "DebertaV2": ("ForMaskedLM", {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4}),
    "Albert": ("ForMaskedLM", {**ENCODER, "embedding_size": 8}),
    "Electra": ("ForMaskedLM", {**ENCODER, "embedding_size": 8}),
    "Bart": (
        "ForConditionalGeneration",
        {
            "vocab_size": V, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32, "dropout": 0.0,
        },
    ),
}  # fmt: skip
OF_IMAGES = {
    "ViT": PATCHES,
    "Dinov2WithRegisters": {**PATCHES, "drop_path_rate": 0.0},
    "DeiT": PATCHES,
    "Beit": {**PATCHES, "use_relative_position_bias": True, "drop_path_rate": 0.0},
    "Swin": WINDOWS,
    "Swinv2": WINDOWS,
    "ConvNext": {"image_size": 32, "patch_size": 2, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 3},
    "Segformer": {
        **NO_DROPOUT, "image_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 8, "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0, "num_labels": 3,
    },
}  # fmt: skip


def same_as_torch(model, batch):
    peer = copy.deepcopy(model).double()
    loss = peer(**{n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in batch.items()}).loss
    loss.backward()
    assert float(remat.compile(model, None, batch)(**batch)) == pytest.approx(loss.item(), rel=2e-6)
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), peer.parameters(), strict=True) if q.grad is not None]
    assert error(*zip(*pairs, strict=True)) <= 5e-6


@pytest.mark.filterwarnings("ignore:attention's scores")
@pytest.mark.parametrize(("name", "implementation"), [(n, i) for n in OF_TEXT for i in ("sdpa", "eager") if (n, i) != ("Gemma2", "sdpa")])
def test_models_of_text(name, implementation):
    torch.manual_seed(1)
    kind, settings = OF_TEXT[name]
    model = getattr(tr, name + kind)(getattr(tr, name + "Config")(**settings))
    model.set_attn_implementation(implementation)
    same_as_torch(model, {"input_ids": torch.randint(3, V, (B, T)), "labels": torch.randint(3, V, (B, T))})


@pytest.mark.filterwarnings("ignore:attention's scores")
@pytest.mark.parametrize("name", OF_IMAGES)
def test_models_of_images(name):
    torch.manual_seed(1)
    config = getattr(tr, name + "Config")(**OF_IMAGES[name])
    model = getattr(tr, name + "ForImageClassification")(config)
    size = OF_IMAGES[name]["image_size"]
    same_as_torch(model, {"pixel_values": torch.randn(B, 3, size, size), "labels": torch.tensor([2, 0])})


def test_clip_compares_texts_with_images():
    torch.manual_seed(1)
    layers = {**SIZES, "num_hidden_layers": 1}
    text = {**layers, "vocab_size": V, "max_position_embeddings": T, "eos_token_id": 1}
    config = tr.CLIPConfig(text_config=text, vision_config={**layers, "image_size": 16, "patch_size": 4}, projection_dim=8)
    batch = {"input_ids": torch.randint(3, V, (B, T)), "pixel_values": torch.randn(B, 3, 16, 16), "return_loss": True}
    same_as_torch(tr.CLIPModel(config), batch)


@pytest.mark.filterwarnings("ignore:attention's scores")
def test_wav2vec2_transcribes():
    """Convolutions over the samples, and of positions over time, between layers of attention. Its hooks are installed at capture."""
    torch.manual_seed(1)
    config = tr.Wav2Vec2Config(
        **SIZES, vocab_size=V, conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 8], num_feat_extract_layers=2, hidden_dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="layer", classifier_proj_size=8, num_labels=3,
    )  # fmt: skip
    same_as_torch(tr.Wav2Vec2ForSequenceClassification(config), {"input_values": torch.randn(B, 400), "labels": torch.tensor([2, 0])})


def test_m2m100_translates():
    """Its table of positions is chosen under torch.no_grad()."""
    torch.manual_seed(1)
    kind, settings = OF_TEXT["Bart"]
    model = tr.M2M100ForConditionalGeneration(tr.M2M100Config(**settings, attention_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0))
    same_as_torch(model, {"input_ids": torch.randint(3, V, (B, T)), "labels": torch.randint(3, V, (B, T))})
