"""The drafter of an engine by what it may draft from, or by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from groundspeed.drafting.base import DrafterFactory
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.bridged import BridgedDraftModel
from groundspeed.drafting.calibration import Calibration
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.lookahead import LookaheadDrafter
from groundspeed.drafting.medusa import Medusa
from groundspeed.drafting.together import Together
from groundspeed.errors import InputError
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from groundspeed.verify.target import TransformersTarget

__all__ = ["ForTarget", "drafter_by_name", "make_drafter"]

ForTarget: TypeAlias = Callable[["TransformersTarget", Any], DrafterFactory]
"""Makes a drafter that asks the target itself, once that is loaded; given the target and its tokenizer."""

_WRITTEN = """\
The cache keeps the keys and values of every token that was read, so that a step only computes what is \
new. When a draft is accepted, its entries are moved next to those of the text, and the others are \
dropped. How long a draft should be depends on two things: how likely each of its tokens is, and what it \
takes to verify one more of them. On a small machine every token counts, while a large one reads sixteen \
in the time of one. For example, if half of the drafted tokens are right, a draft of four brings nearly \
one token more in each step. In short, a good drafter is cheap first and right second, and it should know \
when to say nothing at all."""
"""A text of no particular kind, on which the first layers of a model are measured."""


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


def drafter_by_name(name: str) -> ForTarget:
    """A drafter that asks the target itself, by its name.

    Args:
        name: ``lookahead``; ``first-layers``, as many of the target's as measurement on a short text chooses;
            or a folder of Medusa heads.

    Raises:
        InputError: There is none of that name. What is returned raises it for heads of another model.
        ModelError: The heads cannot be read. What is returned raises it for a model that shows no layers.
    """
    if name == "lookahead":
        return lambda target, tokenizer: LookaheadDrafter
    if name == "first-layers":
        return _first_layers
    if Path(name).is_dir():
        return _heads(Path(name))
    raise InputError(
        f"there is no drafter {name!r}; give blend, lookahead, first-layers, or a folder of Medusa heads"
    )


def _first_layers(target: TransformersTarget, tokenizer: Any) -> DrafterFactory:
    from groundspeed.verify.early_exit import FirstLayers

    return DraftModel(FirstLayers.chosen(target, tokenizer(_WRITTEN)["input_ids"]))


def _heads(folder: Path) -> ForTarget:
    from groundspeed.verify.medusa_heads import MedusaHeads
    from groundspeed.verify.target_view import check_shown

    heads = MedusaHeads.load(folder)

    def check(target: TransformersTarget, tokenizer: Any) -> DrafterFactory:
        check_shown(target, "Medusa heads")
        if heads.width != target.config.hidden_size:
            raise InputError(
                f"the Medusa heads in {folder} take hidden states of width {heads.width} and the target's "
                f"have {target.config.hidden_size}; give heads that were trained for this model"
            )
        return Medusa(heads)

    return check
