"""The drafter of an engine by what it may draft from, before the target is loaded."""

from __future__ import annotations

from pathlib import Path

from groundspeed.drafting.base import DrafterFactory
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.bridged import BridgedDraftModel
from groundspeed.drafting.calibration import Calibration
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.together import Together
from groundspeed.types import ProgressCallback

__all__ = ["make_drafter"]


def make_drafter(
    target: str | None,
    *,
    datastore: Path | None = None,
    draft_model: str | None = None,
    bridge_tokenizers: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    on_progress: ProgressCallback | None = None,
) -> DrafterFactory:
    """Make the blend's drafter, with stored text and a draft model where they are named.

    What does not fit the target's tokenizer is refused here, as nobody should be told after minutes.

    Args:
        target: Name of the target; only its tokenizer is loaded, and only where it is needed.
        datastore: Folder of a token datastore.
        draft_model: Hub id, folder or GGUF file.
        bridge_tokenizers: Let a draft model of other tokens draft by way of text.
        device: Of the draft model.
        dtype: Of the draft model.
        on_progress: Told about the work done, in stages.

    Raises:
        InputError: The draft model's tokens are not those of the target.
        StoreError: The datastore is missing, damaged or of another tokenizer.
        ModelError: The draft model cannot be loaded.
    """
    from groundspeed.datastores.fingerprint import TokenizerFingerprint
    from groundspeed.datastores.tokens import TokenDatastore
    from groundspeed.verify.draft_lm import bridge_between, load_draft_lm
    from groundspeed.verify.loading import load_tokenizer

    if datastore is None and draft_model is None:
        return Blend()
    tokenizer = load_tokenizer(target, on_progress)
    blend = Blend()
    if datastore is not None:
        kept = datastore / "calibration.npz"
        blend = Blend(
            TokenDatastore.open(datastore, TokenizerFingerprint.of(tokenizer)),
            calibration=Calibration.load(kept) if kept.exists() else None,
        )
    if draft_model is None:
        return blend
    checked = None if bridge_tokenizers else tokenizer
    lm = load_draft_lm(draft_model, checked, device=device, dtype=dtype, on_progress=on_progress)
    if not bridge_tokenizers:
        return DraftModel(lm, first=blend)
    bridge = bridge_between(tokenizer, load_tokenizer(draft_model))
    return Together(blend, BridgedDraftModel(lm, bridge))
