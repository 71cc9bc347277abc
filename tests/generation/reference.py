"""transformers' GPT-2 with the parameters of ours."""

import numpy as np
import torch
import transformers

from plmjax.models.gpt2 import Gpt2Config


def transformers_gpt2(config: Gpt2Config, params: dict) -> transformers.GPT2LMHeadModel:
    sizes = {name: getattr(config, name) for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    decoder, layers, size = params["gpt2"], params["gpt2"]["layers"], config.n_embd

    def flat(x, *shape):
        return torch.tensor(np.asarray(x).reshape(*shape))

    tensors = {
        "wte.weight": flat(decoder["word_embeddings"]["embedding"], -1, size),
        "wpe.weight": flat(decoder["position_embeddings"]["embedding"], -1, size),
        "ln_f.weight": flat(decoder["layer_norm"]["scale"], size),
        "ln_f.bias": flat(decoder["layer_norm"]["bias"], size),
    }
    for i in range(config.n_layer):
        attention, feed_forward = layers["attention"], layers["feed_forward"]
        parts = ("query", "key", "value")
        for name, shape in (("kernel", (size, size)), ("bias", (size,))):
            torch_name = {"kernel": "weight"}.get(name, name)
            joined = [flat(attention[part][name][i], *shape) for part in parts]
            tensors[f"h.{i}.attn.c_attn.{torch_name}"] = torch.cat(joined, -1)
            tensors[f"h.{i}.attn.c_proj.{torch_name}"] = flat(attention["output"][name][i], *shape)
            for ours, theirs in (("intermediate", "c_fc"), ("output", "c_proj")):
                tensors[f"h.{i}.mlp.{theirs}.{torch_name}"] = torch.tensor(np.asarray(feed_forward[ours][name][i]))
        for ours, theirs in (("attention_layer_norm", "ln_1"), ("feed_forward_layer_norm", "ln_2")):
            tensors[f"h.{i}.{theirs}.weight"] = flat(layers[ours]["scale"][i], size)
            tensors[f"h.{i}.{theirs}.bias"] = flat(layers[ours]["bias"][i], size)
    model.transformer.load_state_dict(tensors, strict=False)
    return model
