"""Stand-ins for pretrained models, with random weights: for machines that reach no model hub."""

import contextlib
import json
import tempfile
from pathlib import Path

END, PAD = "<|end|>", "<|pad|>"


def small_causal_lm(folder: str | Path, texts: list[str], seed: int = 0) -> str:
    """A Llama of 1 million weights that knows nothing, and a tokenizer that was trained on ``texts``.

    Returns ``folder``, which is left as it is where it has a model already.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(folder)
    if folder.exists():
        return str(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = trainers.BpeTrainer(
        vocab_size=800, special_tokens=[END, PAD], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, words)
    tokenizer.save(str(part / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (part / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = {
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(PAD),
        "bos_token_id": None,
    }
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "initializer_range": 0.1,
    }
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=512, **sizes, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(part)
    with contextlib.suppress(OSError):  # another process was quicker, and has made the same
        part.rename(folder)
    return str(folder)


def small_resnet(folder: str | Path, size: int = 48, seed: int = 0) -> str:
    """A ResNet of 80 thousand weights that knows nothing, and an image processor for ``size`` by ``size`` pixels.

    Returns ``folder``, which is left as it is where it has a model already.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessorPil

    folder = Path(folder)
    if folder.exists():
        return str(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    shape = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1], "layer_type": "basic"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNetForImageClassification(ResNetConfig(**shape))
    model.config.save_pretrained(part)
    save_file(model.state_dict(), part / "model.safetensors", {"format": "pt"})  # save_pretrained shows a bar
    ViTImageProcessorPil(size={"height": size, "width": size}).save_pretrained(part)
    with contextlib.suppress(OSError):  # another process was quicker, and has made the same
        part.rename(folder)
    return str(folder)
