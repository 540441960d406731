"""GGUF files as model folders: converted once, kept in the user's cache.

``transformers`` reads GGUF, but takes most of a minute to turn the quantised blocks into tensors and does not
save what it got. So the file is read once and written as safetensors, which later loads map into memory. The
weights are kept in float32: Q4 blocks dequantise to values that bfloat16 cannot hold, and a float32 run must
be exact.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from groundspeed.errors import ModelError
from groundspeed.types import ProgressCallback
from groundspeed.verify.progress import transformers_progress

__all__ = ["cache_folder", "convert_gguf"]

# Raised whenever this file writes something else for the same GGUF.
_FORMAT = 1


def cache_folder() -> Path:
    """The folder for converted models: ``$GROUNDSPEED_CACHE``, else the user's cache directory."""
    import platformdirs

    return Path(os.environ.get("GROUNDSPEED_CACHE") or platformdirs.user_cache_dir("groundspeed"))


def convert_gguf(path: Path, on_progress: ProgressCallback | None = None) -> Path:
    """Return the folder with the converted model and tokenizer, converting the file if nobody has yet.

    The folder is named by the file's content, so one file in several environments is converted once. It
    appears whole or not at all, and two processes that start together convert once.

    Args:
        path: The GGUF file.
        on_progress: Told about the tensors as they are converted.

    Raises:
        ModelError: The file is not a GGUF that transformers can read, or the cache cannot be written.
    """
    from filelock import FileLock

    target = cache_folder() / f"{path.stem}-{_digest(path)}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.is_dir():
                # Nobody else writes here under the lock: what lies there a killed conversion left.
                partial = Path(f"{target}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                try:
                    _write_folder(path, partial, on_progress)
                    partial.rename(target)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot keep the converted {path.name} in {target.parent}: {error}. Free some disk space there, "
            "or set GROUNDSPEED_CACHE to a folder that can be written"
        ) from error
    return target


def _digest(path: Path) -> str:
    digest = hashlib.sha256(f"groundspeed {_FORMAT}".encode())
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}. Give a GGUF file that can be read") from error
    return digest.hexdigest()[:16]


def _write_folder(path: Path, folder: Path, on_progress: ProgressCallback | None) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def report(what: str, done: int) -> None:
        if on_progress:
            on_progress(f"{what} {path.name}", done, 1)

    report("Reading", 0)
    labels = {"Converting and de-quantizing": f"Converting {path.name}"}
    with transformers_progress(labels, on_progress):
        try:
            source = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        except Exception as error:  # the reader fails in as many ways as a file can be broken
            raise ModelError(
                f"cannot read {path} as GGUF: {error}. Give a whole GGUF file of an architecture that "
                "transformers can load, or a model folder"
            ) from error
        # A model read from GGUF counts as quantised and refuses to be saved: a plain twin takes its weights.
        config = source.config
        del config.quantization_config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(source.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = source.generation_config
        report("Saving the converted", 0)
        model.save_pretrained(folder)
        _split_digits(tokenizer, path)
        tokenizer.save_pretrained(folder)
        report("Reading", 1)
        report("Saving the converted", 1)


def _split_digits(tokenizer: Any, path: Path) -> None:
    """Give a tokenizer of the SmolLM kind its digit splitter back: transformers drops it when it reads GGUF.

    Digits come out the same without it, but white space in front of a digit does not: the model was trained
    on a blank line and "1", and would read two line ends and "1".
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return
    field = GGUFReader(path).fields.get("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
