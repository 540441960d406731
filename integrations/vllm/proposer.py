"""The proposer that vLLM's ``custom_class`` method calls after each step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.drafting import budget
from groundspeed.drafting.base import (
    Drafter,
    DrafterFactory,
    DraftRequest,
    DraftTree,
    WarmDrafterFactory,
)
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.calibration import Calibration
from groundspeed.drafting.forms import token_forms
from groundspeed.drafting.recycled import RecycledTokens
from groundspeed.errors import DraftError
from groundspeed.integrations.vllm import plugin
from groundspeed.integrations.vllm.cost import StepCost
from groundspeed.integrations.vllm.settings import Settings
from groundspeed.integrations.vllm.texts import ByContent, ByRequest, Opening, Text, Texts
from groundspeed.integrations.vllm.versions import check_version

__all__ = ["Proposer"]

logger = logging.getLogger(__name__)


class Proposer:
    """Drafts chains for all rows of vLLM's batch; a wrong draft costs time, never a token.

    An engine would go down with it if it raised, drafted too much or named tokens that do not exist. So
    nothing is raised here, and every draft is looked at; a text whose drafter fails goes on without drafts.

    Attributes:
        datastore: Of the node, that is drafted from as well; None for none.
        drafters: Makes the drafter of a text.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings and open the datastore.

        Args:
            vllm_config: vLLM's ``VllmConfig``.

        Raises:
            InputError: A version of vLLM that is not known, or settings that do not fit.
            StoreError: The datastore is missing, damaged or of another tokenizer.
        """
        check_version()
        self._settings = Settings.of(vllm_config.additional_config)
        model = vllm_config.model_config
        self._most: int = vllm_config.speculative_config.num_speculative_tokens
        self._context: int = model.max_model_len
        self._vocab_size: int = model.get_vocab_size()
        self._said: set[str] = set()
        self._forms: NDArray[np.int32] | None = None
        tokenizer = self._tokenizer(model)
        if tokenizer is not None:
            self._forms = token_forms(str(tokenizer.decode([i])) for i in range(self._vocab_size))
        self.datastore = _open(self._settings.datastore, tokenizer)
        self.drafters: DrafterFactory = _blend(self._settings, self.datastore)
        self._cost = StepCost(self._most)
        self._texts: Texts = ByContent(self._begin, 2 * vllm_config.scheduler_config.max_num_seqs)
        self._runner: Any = None
        plugin.follow()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Compile what drafts, before there are requests; vLLM calls it when it has loaded its model."""
        budget.warm_up()
        if isinstance(self.drafters, WarmDrafterFactory):
            self.drafters.warm_up()

    def bind(self, runner: Any) -> None:
        """Learn from vLLM's model runner which request stands in which row, and with which documents."""
        if runner is self._runner:
            return
        self._runner = runner
        try:
            _ = runner.requests, runner.input_batch.req_ids, runner.input_batch.num_prompt_tokens
        except AttributeError as error:
            logger.warning(
                "this vLLM keeps its requests otherwise (%s); documents of requests are not drafted from",
                error,
            )
        else:
            self._texts = ByRequest(
                runner, self._begin, self._vocab_size, self._settings.max_document_tokens, self._warn
            )

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft what may follow each text.

        Args:
            sampled_token_ids: By row, what the last step added; nothing while its prompt is being read.
            num_tokens_no_spec: int32 [at least rows], tokens of each row without drafts.
            token_ids_cpu: int32 [at least rows, max_model_len], its tokens.
            slot_mappings: Not used.

        Returns:
            By row the draft, at most ``num_speculative_tokens`` ids.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        try:
            found = self._drafts(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            for row, draft in found.items():
                drafts[row] = draft
        except Exception:
            self._fail("drafting")
            return [[] for _ in sampled_token_ids]
        return drafts

    def _drafts(
        self, sampled: list[list[int]], ends: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> dict[int, list[int]]:
        """By row that is being written the draft, as much of it as pays."""
        texts: dict[int, Text] = {}
        for row, added in enumerate(sampled):
            if added:
                written = tokens[row, : ends[row]]
                text = texts[row] = self._texts.find(row, len(written) - len(added), written)
                self._extend(text, written)
                self._texts.keep(text, written)
        self._texts.tidy()
        if not texts:
            return {}
        names = [id(text) for text in texts.values()]
        self._cost.ended(names, alone=len(texts) == len(sampled))
        chains = {row: self._draft(row, text, int(ends[row])) for row, text in texts.items()}
        context = sum(text.seen for text in texts.values()) // len(texts)
        counts = self._cost.share([*chains.values()], context)
        self._cost.begins(names, sum(counts), context)
        return {
            row: chain.token_ids[:count].tolist()
            for (row, chain), count in zip(chains.items(), counts, strict=True)
        }

    def _begin(self, opening: Opening) -> Drafter | None:
        try:
            drafter: Drafter = self.drafters()
            drafter.begin(
                DraftRequest(
                    prompt_ids=opening.prompt_ids,
                    passages=opening.documents,
                    vocab_size=self._vocab_size,
                    forms=self._forms,
                    temperature=opening.temperature,
                )
            )
        except Exception:
            self._fail("begin")
            return None
        return drafter

    def _extend(self, text: Text, tokens: NDArray[np.int32]) -> None:
        try:
            if text.drafter is not None and len(tokens) > text.seen:
                text.drafter.extend(tokens[text.seen :])
        except Exception:
            self._fail("extend")
            text.drafter = None
        text.seen = len(tokens)

    def _draft(self, row: int, text: Text, end: int) -> DraftTree:
        try:
            if text.drafter is None:
                return DraftTree.empty()
            room = min(self._most, self._context - end - 1, self._texts.room(row, text))
            if room <= 0:
                return DraftTree.empty()
            chain = text.drafter.propose(room)
            if len(chain) > room:
                raise DraftError(f"{room} tokens were asked for and {len(chain)} were drafted")
            ids = chain.token_ids.tolist()
            if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
                raise DraftError(f"a token outside the vocabulary of {self._vocab_size:,} was drafted: {ids}")
        except Exception:
            self._fail("propose")
            text.drafter = None
            return DraftTree.empty()
        return chain

    def _fail(self, doing: str) -> None:
        if doing not in self._said:
            self._said.add(doing)
            logger.warning(
                "the drafter failed in %s; the text goes on without drafts, and no more is said of this kind",
                doing,
                exc_info=True,
            )

    def _warn(self, what: str) -> None:
        if "documents" not in self._said:
            self._said.add("documents")
            logger.warning("%s; no more is said of this kind", what)

    def _tokenizer(self, model: Any) -> Any:
        """The model's tokenizer; None where there is none, and then text spelt otherwise is not found."""
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                model.tokenizer,
                revision=model.tokenizer_revision,
                trust_remote_code=model.trust_remote_code,
            )
        except Exception:
            logger.warning("drafting goes on without the tokenizer of %s", model.tokenizer, exc_info=True)
            return None


def _open(folder: Path | None, tokenizer: Any) -> TokenDatastore | None:
    if folder is None:
        return None
    return TokenDatastore.open(folder, None if tokenizer is None else TokenizerFingerprint.of(tokenizer))


def _blend(settings: Settings, datastore: TokenDatastore | None) -> Blend:
    """What makes the drafters; no logits are seen here, so one empty table of them serves all."""
    kept = None if datastore is None else datastore.path / "calibration.npz"
    return Blend(
        datastore,
        namespaces=settings.namespaces,
        calibration=Calibration.load(kept) if kept is not None and kept.exists() else None,
        recycled=RecycledTokens(capacity=8),
        chain=True,
    )
