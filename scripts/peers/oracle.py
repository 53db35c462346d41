#!/usr/bin/env python3
"""scripts/peers/oracle.py -- what small models' losses, gradients and first training steps are, from PyTorch in double precision.

    oracle.py [--out FOLDER] [--check]

Writes a folder for each model of MODELS into FOLDER (default: tests/train/oracle, where they are committed). --check writes nothing:
it computes again and holds what is there against that (exit 1, naming what differs). Exit 77 without PyTorch, transformers, safetensors.

config.json             the model, in the form in which such models are published; transformers reads it from here
model.safetensors       the initial weights, fp32, named as transformers names them; a tied lm_head is not there. With config.json:
                        a checkpoint that transformers loads
plain.safetensors       gradients of the mean token loss of batch `plain`, same names, rounded from double to fp32
packed.safetensors      the same of batch `packed`, where there is one
oracle.json
  made_by               versions of what computed this; seed
  plain, packed         a batch: ids, labels and positions, [rows][tokens]; documents, the lengths of each row's; labels are already
                        shifted: labels[i] is what token i has to predict, -100 counts nothing. valid: labels that count;
                        loss: mean over them; grad_norm: of all gradients together
  adamw                 lr, betas, eps, decay, decayed ("matrices": tensors of two dimensions, the embedding among them), clip and
                        clip_eps: gradients are multiplied by min(1, clip / (grad_norm + clip_eps))
  curve                 loss and grad_norm (before clipping) of each of the steps on batch `plain`, both before the step's update
  fp32                  the largest relative deviation of transformers' own fp32 run from all this: loss, gradients (norm of the
                        difference by the norm, of the worst tensor), curve_loss, curve_grad_norm: what fp32 can be held to

transformers computes norms, softmax, rotary angles and the loss in fp32 even of a double model. Here these are stated again, in
double; that they are the same formulas is what the fp32 run, which is transformers' alone, masks and shifts included, is held to.
"""

import argparse
import json
import os
import platform
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as missing:
    print(f"oracle: no {missing.name} in {sys.executable}", file=sys.stderr)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 1
TOKENS = 48
DOCUMENTS = [13, 6, 29]
STEPS = 20
ADAMW = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "decay": 0.1, "decayed": "matrices", "clip": 1.0, "clip_eps": 1e-6}
FP32_BOUND = {"loss": 1e-6, "gradients": 1e-5, "curve_loss": 1e-4, "curve_grad_norm": 1e-3}  # beyond: another formula

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 64, "max_position_embeddings": 64, "hidden_act": "silu", "attention_dropout": 0.0, "bos_token_id": None,
         "eos_token_id": None, "torch_dtype": "float32"}
MODELS = {
    "llama": SHAPE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
                      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False},
    "qwen2": SHAPE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                      "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 2, "tie_word_embeddings": True},
    "qwen3": SHAPE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 16,
                      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None, "use_sliding_window": False,
                      "sliding_window": None, "max_window_layers": 2, "tie_word_embeddings": False},
    "mistral": SHAPE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                        "sliding_window": 9, "tie_word_embeddings": False},
}
PACKED = ("llama", "mistral")


def load(folder, attention):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)


def initial(folder):
    """Weights that leave nothing symmetric: norms are not 1, biases not 0."""
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    chance = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=chance)
            if weight.dim() == 2:
                weight.copy_(noise * weight.shape[1] ** -0.5)
            else:
                weight.copy_(noise * 0.1 + (1.0 if "norm" in name else 0.0))
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def attend(module, q, k, v, mask, scaling, **_):
    """Attention of [B, H, S, D] in the dtype of its input."""
    k, v = (t.repeat_interleave(module.num_key_value_groups, dim=1) for t in (k, v))
    p = (q @ k.transpose(2, 3) * scaling + mask).softmax(-1)
    return (p @ v).transpose(1, 2).contiguous(), None


class Norm(torch.nn.Module):
    def __init__(self, stock):
        super().__init__()
        self.weight, self.eps = stock.weight, stock.variance_epsilon

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class Rotary(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.inv_freq = config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float64) / -dim)

    def forward(self, x, position_ids):
        angle = position_ids[..., None] * self.inv_freq
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()


class Double(TorchDispatchMode):
    """Nothing in here computes in less than double, the backward included."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if torch.is_tensor(tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise SystemExit(f"oracle: {operation} computes in {tensor.dtype}; right would be double")
        return made


def exact(folder):
    transformers.AttentionInterface.register("oracle", attend)
    model = load(folder, "oracle").double()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "variance_epsilon"):
                setattr(module, name, Norm(child))
    model.model.rotary_emb = Rotary(model.config)
    return model


def stock(folder):
    return load(folder, "eager")


def batch(documents):
    chance = torch.Generator().manual_seed(SEED)
    shape = (len(documents), TOKENS)
    ids = torch.randint(SHAPE["vocab_size"], shape, generator=chance)
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in documents])
    labels = torch.full(shape, -100)
    labels[:, :-1] = ids[:, 1:]
    labels[:, :-1][positions[:, 1:] == 0] = -100  # a document's last token predicts nothing
    labels[torch.rand(shape, generator=chance) < 0.1] = -100
    labels[0, :7] = -100  # as of a prompt
    return {"documents": documents, "positions": positions, "ids": ids, "labels": labels}


def mask_of(documents, window):
    """0 where query i sees key j, of the same document, not after it and less than a window before it; else -infinity. [rows][1][tokens][tokens]"""
    rows = []
    for lengths in documents:
        owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        sees = (owner[:, None] == owner[None, :]).tril().triu(1 - (window or TOKENS))
        rows.append(torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, float("-inf")))
    return torch.stack(rows)[:, None]


def exact_loss(model, data):
    mask = mask_of(data["documents"], getattr(model.config, "sliding_window", None))
    logits = model(data["ids"], attention_mask=mask, position_ids=data["positions"], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), data["labels"].flatten(), ignore_index=-100)


def stock_loss(model, data):
    """transformers' own: it finds the documents from where positions begin again, and has its own mask and loss."""
    positions = {"position_ids": data["positions"]} if max(map(len, data["documents"])) > 1 else {}
    return model(data["ids"], labels=data["ids"], shift_labels=data["labels"], use_cache=False, **positions).loss


def together(gradients):
    return torch.stack([g.double().norm() for g in gradients]).norm().item()


def gradients_of(model, loss_of, data):
    model.zero_grad()
    loss = loss_of(model, data)
    loss.backward()
    return loss.item(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def curve_of(model, loss_of, data):
    groups = [{"params": [w for w in model.parameters() if w.dim() == 2], "weight_decay": ADAMW["decay"]},
              {"params": [w for w in model.parameters() if w.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"], foreach=False)
    losses, norms = [], []
    for _ in range(STEPS):
        loss, gradients = gradients_of(model, loss_of, data)
        losses.append(loss)
        norms.append(together(gradients.values()))
        for weight in model.parameters():
            weight.grad *= min(1.0, ADAMW["clip"] / (norms[-1] + ADAMW["clip_eps"]))
        optimizer.step()
    return {"loss": losses, "grad_norm": norms}


def apart(got, wanted):
    """The largest relative deviation of numbers, or of tensors by name."""
    if isinstance(wanted, dict):
        return max(((got[n].double() - w.double()).norm() / w.double().norm()).item() for n, w in wanted.items())
    return max(abs(g - w) / abs(w) for g, w in zip(got, wanted, strict=True))


def oracle(name, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as out:
        out.write(json.dumps(MODELS[name], indent=2) + "\n")
    tensors = {"model": initial(folder)}
    save(folder, tensors)
    said = {"made_by": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                        "python": platform.python_version(), "seed": SEED}}
    batches = {"plain": batch([[TOKENS], [TOKENS]])} | ({"packed": batch([DOCUMENTS])} if name in PACKED else {})
    deviation = {"loss": 0.0, "gradients": 0.0}
    for kind, data in batches.items():
        model = exact(folder)
        with Double():
            loss, gradients = gradients_of(model, exact_loss, data)
        loss32, gradients32 = gradients_of(stock(folder), stock_loss, data)
        deviation["loss"] = max(deviation["loss"], apart([loss32], [loss]))
        deviation["gradients"] = max(deviation["gradients"], apart(gradients32, gradients))
        tensors[kind] = {n: g.float() for n, g in gradients.items()}
        said[kind] = {k: v.tolist() if torch.is_tensor(v) else v for k, v in data.items()}
        said[kind] |= {"valid": int((data["labels"] != -100).sum()), "loss": loss, "grad_norm": together(gradients.values())}
    said["adamw"] = {"steps": STEPS} | ADAMW
    said["curve"] = curve_of(exact(folder), exact_loss, batches["plain"])
    curve32 = curve_of(stock(folder), stock_loss, batches["plain"])
    deviation |= {f"curve_{k}": apart(curve32[k], said["curve"][k]) for k in ("loss", "grad_norm")}
    said["fp32"] = {k: float(f"{v:.3g}") for k, v in deviation.items()}
    for what, bound in FP32_BOUND.items():
        if not deviation[what] <= bound:
            raise SystemExit(f"oracle: {name}: {what} of transformers in fp32 is {deviation[what]:.2g} away; right would be {bound:g}")
    with open(os.path.join(folder, "oracle.json"), "w") as out:
        out.write("{\n" + ",\n".join(f' "{k}": {lines(v)}' for k, v in said.items()) + "\n}\n")
    save(folder, tensors)
    return said


def save(folder, tensors):
    for kind, named in tensors.items():
        path = os.path.join(folder, kind + ".safetensors")
        save_file({n: t.contiguous() for n, t in named.items()}, path, {"format": "pt"})
        os.chmod(path, 0o644)


def lines(value):
    """JSON with a line for each key of an object, of whatever length."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in value.items()) + "\n }"


def differences(there, again):
    """What of the folder `there` is not what has been computed `again`. Doubles of other processors differ in their last digits."""
    names = sorted(os.listdir(again))
    if sorted(os.listdir(there)) != names:
        yield f"{there}: files {sorted(os.listdir(there))}; right would be {names}"
        return
    for name in names:
        old, new = os.path.join(there, name), os.path.join(again, name)
        if name.endswith(".safetensors"):
            old_tensors, new_tensors = load_file(old), load_file(new)
            shapes = [{n: t.shape for n, t in f.items()} for f in (old_tensors, new_tensors)]
            if shapes[0] != shapes[1]:
                yield f"{old}: tensors {shapes[0]}; right would be {shapes[1]}"
            elif apart(old_tensors, new_tensors) > (0 if name == "model.safetensors" else 1e-6):
                yield f"{old}: tensors differ by {apart(old_tensors, new_tensors):.2g}"
            continue
        with open(old) as a, open(new) as b:
            was, now = json.load(a), json.load(b)
        for key in sorted(now.keys() | was.keys()):
            if key not in ("made_by", "fp32") and not alike(was.get(key), now.get(key)):
                yield f"{old}: {key} differs"


def alike(was, now):
    if isinstance(now, dict):
        return isinstance(was, dict) and was.keys() == now.keys() and all(alike(was[k], now[k]) for k in now)
    if isinstance(now, list):
        return isinstance(was, list) and len(was) == len(now) and all(map(alike, was, now))
    if isinstance(now, float):
        return isinstance(was, float) and abs(was - now) <= 1e-6 * abs(now)
    return was == now


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(HERE, "..", "..", "tests", "train", "oracle"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    wrong = []
    for name in MODELS:
        there = os.path.join(options.out, name)
        if not options.check:
            said = oracle(name, there)
            print(f"{name}: loss {said['plain']['loss']:.4f} .. {said['curve']['loss'][-1]:.4f}; fp32 {json.dumps(said['fp32'])}")
            continue
        if not os.path.isdir(there):
            parser.error(f"{there}: no such folder; right would be one that this program wrote")
        with tempfile.TemporaryDirectory() as again:
            oracle(name, again)
            wrong += differences(there, again)
    for line in wrong:
        print("oracle:", line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
