"""scripts/figures.d/llama_small.py -- a decoder that GPUs train in seconds, with heads for 8 ranks. For scripts/gpu-figures and scripts/gpu-scale."""

import json
import os

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 2816, "vocab_size": 4096, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip


def put(folder):
    """So that it is `--model llama-small` to a command that runs in there."""
    os.makedirs(os.path.join(folder, "llama-small"), exist_ok=True)
    with open(os.path.join(folder, "llama-small", "config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIG, file, indent=2)
