"""Answers in a given form: which tokens may come next, and which ones the form leaves no choice about.

The form is checked by llguidance (https://github.com/guidance-ai/llguidance), an Earley parser over the bytes
of tokens with lexemes as derivatives of regular expressions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.tree import prune
from groundspeed.errors import InputError, ModelError
from groundspeed.types import GenerationRequest, Grammar, Source

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerBase

__all__ = ["JSON_WHITESPACE", "GrammarState", "Grammars", "check_grammar"]

_KEPT = 64
"""Grammars that are kept ready: a large one takes up to a second to take in."""

JSON_WHITESPACE = r"( |\r?\n[ \t]{0,32})"
"""Between the tokens of JSON: a space, or a line break and an indentation. The library lets in any number of
both, and weak models go on with them for ever."""


class Grammars:
    """Takes in grammars for one tokenizer and hands out their states, in any thread."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        """Nothing is done before the first grammar.

        Args:
            tokenizer: The target model's.
            vocab_size: Width of its logits; the tokenizer may know fewer tokens.
            eos_token_ids: Tokens that end a text. Where there are none, the tokenizer's last token takes
                their place in answers with a grammar.
        """
        self._hf_tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = frozenset(eos_token_ids) or frozenset([len(tokenizer) - 1])
        self._matcher = lru_cache(_KEPT)(self._make_matcher)

    def start(self, grammar: Grammar, prompt_tokens: int) -> GrammarState:
        """The beginning of an answer.

        Args:
            grammar: What the answer must look like.
            prompt_tokens: Tokens that stand before it.

        Raises:
            InputError: The grammar is none, or no text satisfies it; the message is the library's.
            ModelError: The tokenizer cannot be used with grammars.
        """
        return GrammarState(self._matcher(grammar).deep_copy(), self._ends, prompt_tokens)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import hf

        tokenizer = self._hf_tokenizer
        size = max(self._vocab_size, len(tokenizer))
        try:
            return hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(self._ends))
        except ValueError as error:
            raise ModelError(
                f"the model's tokenizer, {type(tokenizer).__name__}, cannot be used with grammars ({error}); "
                "load the model with a fast tokenizer, or leave the grammar out"
            ) from error

    def _make_matcher(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, _in_library_form(grammar), log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # shows whether any token may come first
        if matcher.is_error():
            raise _unusable(grammar, _problem(matcher))
        return matcher


class GrammarState:
    """How far an answer has come in its grammar.

    It is called as a logits processor is, once for every token and in order, and takes in the tokens that
    joined the text since. Behind the last token of a complete answer nothing is excluded any more: the answer
    ends there, whatever is chosen.

    Attributes:
        ends: Tokens that end the answer; they are excluded where the grammar may not end.
        taken: Tokens of the answer that it has taken in; those behind its end are none of them.
        complete: Whether nothing can follow.
    """

    def __init__(self, matcher: LLMatcher, ends: frozenset[int], prompt_tokens: int) -> None:
        """Start behind the prompt.

        Args:
            matcher: Of this answer alone, nothing consumed.
            ends: Tokens that end the answer.
            prompt_tokens: Tokens that stand before the answer.
        """
        self.ends = ends
        self.taken = 0
        self.complete = False
        self._matcher = matcher
        self._end_ids = sorted(ends)
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Exclude what the grammar forbids: ids [1, text], scores [1, vocab] -> [1, vocab].

        Raises:
            InputError: The text cannot be completed from here.
        """
        self.take(input_ids[0, self._prompt_tokens + self.taken :].tolist())
        if self.complete:
            return scores
        mask = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._look()
        self.complete |= np.count_nonzero(mask) == np.count_nonzero(mask[self._end_ids])
        if self.complete:
            return scores
        forbidden = torch.from_numpy(mask[: scores.shape[-1]] == 0).to(scores.device)
        return scores.masked_fill(forbidden, float("-inf"))

    def take(self, token_ids: Sequence[int]) -> None:
        """Take in the next tokens of the answer; behind its end there are none.

        Raises:
            InputError: A token that the grammar forbids, or a text that it cannot follow.
        """
        for token in token_ids:
            if self.complete or token in self.ends:
                return
            self._matcher.consume_token(token)
            self.taken += 1
            self._look()

    def _look(self) -> None:
        if self._matcher.is_error() and not self._matcher.is_accepting():
            raise InputError(
                f"the grammar leads nowhere behind {self.taken} tokens of the answer: "
                f"{_problem(self._matcher)}; mend it, or make it simpler"
            )
        self.complete = self._matcher.is_stopped()

    def weave(self, tree: DraftTree, budget: int) -> DraftTree:
        """What the grammar leaves of a draft, with the tokens that it forces at every node.

        A forced token takes the place of all others, and what was drafted behind it stays behind it; the mask
        lets in no other spelling of a forced text than the tokenizer's. Every token is still chosen from the
        target's own distribution, and draws do not depend on drafts: so what a stochastic drafter said of its
        tokens is not needed, and left out.

        Args:
            tree: A draft over the text that the grammar has taken in.
            budget: Most nodes.
        """
        if self.complete:
            return DraftTree.empty()
        # By a copy: whatever is tried there, limits of the library that it runs into included, stays there.
        weaving = _Weaving(self._matcher.deep_copy(), self.ends, tree, 2 * budget)
        weaving.visit(-1, -1, 1.0)
        return prune(weaving.tree(), budget)


class _Weaving:
    """One walk over a draft tree, along with the grammar."""

    def __init__(self, matcher: LLMatcher, ends: Collection[int], tree: DraftTree, most: int) -> None:
        self._matcher = matcher
        self._ends = ends
        self._most = most
        self._tokens = tree.token_ids.tolist()
        self._probs = tree.probs.tolist()
        self._provenance = list(zip(tree.source.tolist(), tree.origin.tolist(), strict=True))
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            self._children.setdefault(parent, []).append(node)
        self._rows: list[tuple[int, int, float, int, int]] = []  # token, parent, prob, source, origin

    def visit(self, node: int | None, row: int, prob: float) -> None:
        """Take up what may follow ``node`` of the draft (None: nothing was drafted there), as ``row``."""
        drafted = [] if node is None else self._children.get(node, [])
        forced = self._matcher.compute_ff_tokens()[:1]
        for token in forced:
            same = next((child for child in drafted if self._tokens[child] == token), None)
            self._enter(token, same, row, prob, (int(Source.GRAMMAR), -1))
        if not forced:
            before = 1.0 if node in (None, -1) else self._probs[node]
            for child in drafted:
                share = prob * self._probs[child] / before
                self._enter(self._tokens[child], child, row, share, self._provenance[child])

    def _enter(
        self, token: int, node: int | None, parent: int, prob: float, provenance: tuple[int, int]
    ) -> None:
        # An end of sequence is never accepted as a draft.
        if len(self._rows) == self._most or token in self._ends:
            return
        if self._matcher.try_consume_tokens([token]):
            self._rows.append((token, parent, prob, *provenance))
            self.visit(node, len(self._rows) - 1, prob)
            self._matcher.rollback(1)

    def tree(self) -> DraftTree:
        """What was taken up."""
        tokens, parents, probs, source, origin = zip(*self._rows, strict=True) if self._rows else [()] * 5
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.array(probs, np.float32),
            np.array(source, np.uint16),
            np.array(origin, np.int64),
        )


def check_grammar(request: GenerationRequest) -> None:
    """Refuse a grammar whose end would be ignored.

    Raises:
        InputError: The request has a grammar and ``ignore_eos``.
    """
    if request.grammar is not None and request.ignore_eos:
        raise InputError(
            "a grammar and ignore_eos were given; an answer with a grammar ends where that may end: leave "
            "one of them out"
        )


def _in_library_form(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    try:
        match grammar.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(grammar.text, defaults=_json_options(grammar))
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "lark":
                return LLMatcher.grammar_from_lark(grammar.text)
            case "choice":
                return LLMatcher.grammar_from_lark(f"start: {_alternatives(grammar)}")
    except ValueError as error:
        raise _unusable(grammar, str(error)) from error
    raise InputError(
        f"a grammar of the kind {grammar.kind!r} was given; the kinds are json_schema, regex, lark and choice"
    )


def _json_options(grammar: Grammar) -> Any:
    """What holds where the schema itself says nothing of it."""
    schema = json.loads(grammar.text)
    own = schema.get("x-guidance") if isinstance(schema, dict) else None
    if isinstance(own, dict) and "whitespace_flexible" in own:
        return {}  # the pattern would overrule it
    return {"whitespace_pattern": JSON_WHITESPACE}


def _alternatives(grammar: Grammar) -> str:
    texts = json.loads(grammar.text)
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
        raise _unusable(grammar, f"it is {grammar.text}, not a list of one text or more")
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _unusable(grammar: Grammar, problem: str) -> InputError:
    return InputError(f"the {grammar.kind} grammar cannot be used: {problem}; mend it")


def _problem(matcher: LLMatcher) -> str:
    """What the library says is wrong, without the notice that it leaves something out."""
    problem = matcher.get_error().removesuffix("<non-verbose/>").strip()
    return "no text satisfies it" if problem.startswith("NoExtension") else problem
