"""Answers follow their grammar, which drafts what it forces and changes nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch
from helpers.drafters import ADVERSARIES, RandomTrees, tree_of
from helpers.engines import FREE, engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.none import NoDrafter
from groundspeed.drafting.tree import paths
from groundspeed.errors import InputError, ModelError
from groundspeed.types import GenerationRequest, Grammar, Source
from groundspeed.verify.engine import Engine
from groundspeed.verify.grammar import Grammars
from groundspeed.verify.target import TransformersTarget

TOKENIZER = byte_tokenizer("ab", "bb", "abb", "ba", "aab")
END = TOKENIZER.eos_token_id
VOCABULARY = 300
"""The model's; its last ids are no tokens."""

PROMPT = "Say it. "
GRAMMARS = Grammars(TOKENIZER, VOCABULARY, [END])
BYTES = [TOKENIZER.decode([i]) for i in range(len(TOKENIZER))]
CHOICES = st.lists(st.text("ab", max_size=7), min_size=1, max_size=6)


def allowed(state, prefix, prompt=(1, 2)):
    scores = state(torch.tensor([[*prompt, *prefix]]), torch.zeros(1, VOCABULARY))
    return set(torch.isfinite(scores[0]).nonzero()[:, 0].tolist())


def shared_beginning(texts):
    first = min(texts)
    same = (n for n in range(len(first), -1, -1) if all(text.startswith(first[:n]) for text in texts))
    return first[: next(same)]


@given(CHOICES, st.randoms(use_true_random=False))
def test_the_tokens_let_in_are_those_with_which_a_choice_can_go_on(choices, random):
    state = GRAMMARS.start(Grammar.choice(choices), 2)
    text, ids = "", []
    while True:
        wanted = {
            token
            for token, piece in enumerate(BYTES)
            if token != END and any(choice.startswith(text + piece) for choice in choices)
        }
        got = allowed(state, ids)
        if not wanted:
            assert state.complete
            assert text in choices
            assert state.taken == len(ids)
            return
        # A text without an alternative is spelt as the tokenizer spells it; any other in every way.
        ways = {choice[len(text) :] for choice in choices if choice.startswith(text)}
        forced = TOKENIZER(shared_beginning(ways))["input_ids"][:1]
        assert got == wanted | ({END} if text in choices else set()) or list(got) == forced
        assert not state.complete
        token = random.choice(sorted(got - {END}))
        ids.append(token)
        text += BYTES[token]


@given(CHOICES, st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_a_woven_draft_is_what_the_grammar_leaves_of_it_and_what_it_forces(choices, seed, budget):
    rng = np.random.default_rng(seed)
    prefix = choices[rng.integers(len(choices))]
    ids = TOKENIZER(prefix)["input_ids"][: rng.integers(8)]
    text = TOKENIZER.decode(ids)
    state = GRAMMARS.start(Grammar.choice(choices), 0)
    state.take(ids)
    if state.complete:
        assert not len(state.weave(tree_of([BYTES.index("a")], [-1]), budget))
        return
    drafter = RandomTrees(TOKENIZER(rng.choice(choices))["input_ids"][len(ids) :], seed)
    drafter.vocab_size, drafter.done = VOCABULARY, 0
    drafted = drafter.draft(budget)
    woven = state.weave(drafted, budget)
    woven.validate(VOCABULARY)
    assert len(woven) <= budget
    tokens = woven.token_ids.tolist()
    for path in paths(woven):
        assert any(
            choice.startswith(text + "".join(BYTES[tokens[node]] for node in path)) for choice in choices
        )
    before = allowed(state, ids, ())
    again = state.weave(drafted, budget)
    assert again.token_ids.tolist() == tokens
    assert allowed(state, ids, ()) == before
    # Where one choice is left, all of it is drafted, but for what may still be spelt otherwise.
    left = {choice[len(text) :] for choice in choices if choice.startswith(text)}
    if len(left) == 1:
        [rest] = left
        assert set(woven.source.tolist()) <= {Source.GRAMMAR}
        assert len(tokens) == min(budget, len(TOKENIZER(rest)["input_ids"]))


@pytest.mark.parametrize("schema", range(3))
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_let_in_depends_on_the_text_alone(schema, seed):
    rng = np.random.default_rng(seed)
    grammar = Grammar.json_schema(SCHEMAS[schema])
    state = GRAMMARS.start(grammar, 2)
    ids = []
    while not state.complete and len(ids) < 120:
        if rng.random() < 0.5:
            state.weave(tree_of(rng.choice(END, 5, replace=False), [-1, -1, 0, 1, 0]), 8)
        got = allowed(state, ids)
        fresh = GRAMMARS.start(grammar, 2)
        assert allowed(fresh, ids) == got
        assert fresh.complete == state.complete
        # What is drafted without a draft is forced: nothing else is let in.
        assert set(state.weave(DraftTree.empty(), 1).token_ids.tolist()) in (set(), got)
        ids.append(int(rng.choice(sorted(got - {END} or got))))
        state.take(ids[state.taken :])


def test_what_was_drafted_behind_forced_tokens_stays_behind_them():
    a, b = TOKENIZER("a")["input_ids"][0], TOKENIZER("b")["input_ids"][0]
    c, d, x = (TOKENIZER(letter)["input_ids"][0] for letter in "cdx")
    state = GRAMMARS.start(Grammar.regex("xc(c|d)+"), 0)
    drafted = replace(
        tree_of([a, x, c, d, b, c, d], [-1, -1, 1, 2, 2, 3, 1]),
        probs=np.array([0.9, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1], np.float32),
        source=np.full(7, Source.PASSAGE, np.uint16),
        origin=np.arange(7),
        draft_probs=np.ones(7, np.float32),
    )
    woven = state.weave(drafted, 10)
    assert woven.token_ids.tolist() == [x, c, d, c]
    assert woven.parents.tolist() == [-1, 0, 1, 2]
    assert woven.probs.tolist() == pytest.approx([1.0, 1.0, 0.5, 0.5])
    assert woven.source.tolist() == [Source.GRAMMAR, Source.GRAMMAR, Source.PASSAGE, Source.PASSAGE]
    assert woven.origin.tolist() == [-1, -1, 3, 5]
    assert woven.draft_probs is None


SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    },
    {"enum": ["yes", "no", None, 3.5]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
]


@pytest.fixture(scope="module", params=["llama", "gemma3", "bloom"])
def target(request):
    config = {**TREE_FAMILIES, "bloom": OTHER_FAMILIES["bloom"][1]}[request.param]()
    config.vocab_size = VOCABULARY
    config.max_position_embeddings = 1024
    model = tiny_model(config)
    model.generation_config.eos_token_id = END
    return TransformersTarget(model)


def engine_of(target, drafter=NoDrafter):
    return Engine(target, TOKENIZER, drafter=drafter, cost=FREE)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(3))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_hold_to_their_schema_and_drafts_change_no_token(target, schema, temperature):
    for seed in range(3):
        request = GenerationRequest(
            PROMPT,
            max_tokens=200,
            grammar=Grammar.json_schema(schema),
            temperature=temperature,
            seed=seed,
            repetition_penalty=1.1,
        )
        plain = engine_of(target).generate(replace(request, speculate=False))
        jsonschema.validate(json.loads(plain.text), schema)
        assert plain.finish_reason == "stop"
        assert plain.stats.accepted == 0
        for drafter in [NoDrafter(), *(adversary(plain.token_ids, seed) for adversary in ADVERSARIES)]:
            result = engine_of(target, lambda one=drafter: one).generate(request)
            assert result.token_ids == plain.token_ids
            assert result.text == plain.text
            assert result.finish_reason == "stop"


def test_forced_tokens_are_drafted_and_counted(target):
    grammar = Grammar.regex("forced words, (yes|no), and forced again")
    result = engine_of(target).generate(GenerationRequest(PROMPT, max_tokens=60, grammar=grammar))
    assert re.fullmatch(grammar.text, result.text)
    # Each byte is a token, so all but the choice is forced. The first token comes with the prompt.
    assert result.sources.count(Source.GRAMMAR) == result.stats.accepted_by_source["grammar"]
    assert result.stats.accepted == result.sources.count(Source.GRAMMAR) > 30
    assert result.stats.steps <= 5
    off = engine_of(target).generate(
        GenerationRequest(PROMPT, max_tokens=60, grammar=grammar, speculate=False)
    )
    assert off.token_ids == result.token_ids
    assert set(off.sources) == {Source.TARGET}


def test_a_drafter_that_fails_costs_no_forced_token(target):
    class Fails(NoDrafter):
        def propose(self, budget):
            raise RuntimeError("no idea")

    request = GenerationRequest(PROMPT, max_tokens=60, grammar=Grammar.choice(["only this can be said"]))
    result = engine_of(target, Fails).generate(request)
    assert result.text == "only this can be said"
    assert result.stats.steps <= 2


@pytest.mark.parametrize("drafter", ADVERSARIES)
@pytest.mark.parametrize("ends", [True, False])
def test_an_answer_ends_where_its_grammar_does_whether_the_model_knows_an_end_or_not(target, drafter, ends):
    request = GenerationRequest(PROMPT, max_tokens=12, min_tokens=12, grammar=Grammar.regex("[ab]{3}x"))
    target.model.generation_config.eos_token_id = END if ends else None
    try:
        plain = engine_of(target).generate(replace(request, speculate=False))
        result = engine_of(target, lambda: drafter(plain.token_ids)).generate(request)
        exact = engine_of(target).generate(replace(request, max_tokens=len(plain.token_ids), min_tokens=0))
    finally:
        target.model.generation_config.eos_token_id = END
    assert re.fullmatch("[ab]{3}x", plain.text)
    assert (result.text, result.token_ids) == (plain.text, plain.token_ids)
    assert exact.text == plain.text
    assert result.finish_reason == plain.finish_reason == exact.finish_reason == "stop"


def test_an_end_of_sequence_is_let_in_where_the_grammar_may_end_only(target):
    bias = {END: 1000.0}
    request = GenerationRequest(PROMPT, max_tokens=12, grammar=Grammar.regex("[ab]{3,}"), logit_bias=bias)
    result = engine_of(target).generate(request)
    assert re.fullmatch("[ab]{3,}", result.text)
    assert 3 <= len(result.text) <= 5  # the token that makes it long enough may be a long one
    longer = engine_of(target).generate(replace(request, min_tokens=10))
    assert len(longer.token_ids) >= 10
    endless = engine_of(target).generate(replace(request, logit_bias={END: -1000.0}))
    assert (endless.finish_reason, len(endless.token_ids)) == ("length", 12)


def test_an_answer_cut_by_max_tokens_says_so(target):
    request = GenerationRequest(PROMPT, max_tokens=5, grammar=Grammar.json_schema(SCHEMAS[0]))
    result = engine_of(target).generate(request)
    assert (result.finish_reason, len(result.token_ids)) == ("length", 5)
    assert result.text.startswith('{"nam')


def test_a_stop_string_ends_an_answer_before_its_grammar(target):
    request = GenerationRequest(PROMPT, grammar=Grammar.choice(["one, two"]), stop=(",",))
    result = engine_of(target).generate(request)
    assert (result.text, result.finish_reason, result.stop) == ("one", "stop", ",")


def test_nothing_lets_in_what_the_grammar_excludes(target):
    def shameless(input_ids, scores):
        return torch.zeros_like(scores)

    request = GenerationRequest(PROMPT, grammar=Grammar.choice(["fine"]), logits_processors=(shameless,))
    assert engine_of(target).generate(request).text == "fine"


@pytest.mark.parametrize("texts", [['é"\\\n\t/', "😀"], ["a b", "a b c"], [""]])
def test_any_texts_can_be_chosen_from(target, texts):
    for seed in range(4):
        request = GenerationRequest(PROMPT, temperature=1.0, seed=seed, grammar=Grammar.choice(texts))
        assert engine_of(target).generate(request).text in texts


def test_a_grammar_may_be_context_free(target):
    grammar = Grammar.lark('start: "(" start? ")"')
    for seed in range(3):
        request = GenerationRequest(PROMPT, max_tokens=20, temperature=1.0, seed=seed, grammar=grammar)
        result = engine_of(target).generate(request)
        depth = result.text.count("(")
        assert result.finish_reason == "length" or result.text == "(" * depth + ")" * depth


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (
            Grammar.json_schema({"type": "objekt"}),
            "the json_schema grammar cannot be used: Invalid type: objekt",
        ),
        (Grammar.json_schema("{"), "the json_schema grammar cannot be used: Expecting property name"),
        (
            Grammar.json_schema({"type": "integer", "minimum": 3, "maximum": 2}),
            r"Unsatisfiable schema: minimum \(3\) is greater than maximum \(2\)",
        ),
        (Grammar.json_schema({"not": {"type": "string"}}), "Unimplemented keys"),
        (Grammar.regex("("), "the regex grammar cannot be used: .*unclosed group"),
        (Grammar.regex(r"[^\s\S]"), "the regex grammar cannot be used: no text satisfies it"),
        (Grammar.lark("start: missing"), 'unknown name: "missing"'),
        (Grammar.lark('start: start "a"'), "no text satisfies it"),
        (Grammar.choice([]), r"it is \[\], not a list of one text or more"),
        (Grammar.choice([1]), r"it is \[1\], not a list"),
        (Grammar("yaml", "a: b"), "a grammar of the kind 'yaml' was given; the kinds are json_schema"),
    ],
)
def test_a_grammar_that_is_none_is_refused_before_anything_runs(target, grammar, says):
    with pytest.raises(InputError, match=re.compile(says, re.DOTALL)):
        engine_of(target).stream(GenerationRequest(PROMPT, grammar=grammar))


def test_choices_given_as_one_string_are_refused():
    with pytest.raises(InputError, match="choice was given the string 'yes'"):
        Grammar.choice("yes")


def test_a_grammar_that_leads_nowhere_is_an_error_and_not_an_answer(target):
    grammar = Grammar.lark('start: "a" never\nnever: never "b"')
    with pytest.raises(InputError, match="leads nowhere behind 1 tokens of the answer: no text satisfies it"):
        engine_of(target).generate(GenerationRequest(PROMPT, grammar=grammar))


def test_a_grammar_and_ignore_eos_exclude_each_other(target):
    with pytest.raises(InputError, match="a grammar and ignore_eos were given"):
        engine_of(target).stream(GenerationRequest(PROMPT, grammar=Grammar.json_object(), ignore_eos=True))


def test_a_tokenizer_that_is_not_a_fast_one_is_named(target):
    with pytest.raises(ModelError, match="the model's tokenizer, Slow, cannot be used with grammars"):
        Grammars(Slow(), 10, [1]).start(Grammar.json_object(), 0)


class Slow:
    def __len__(self):
        return 10


def test_a_grammar_is_taken_in_once(target):
    grammars = Grammars(TOKENIZER, VOCABULARY, [END])
    first, second = (grammars.start(Grammar.choice(["aa", "b"]), 0) for _ in range(2))
    assert grammars._matcher.cache_info().hits == 1
    first.take(TOKENIZER("a")["input_ids"])
    assert allowed(first, TOKENIZER("a")["input_ids"], ()) == set(TOKENIZER("a")["input_ids"])
    assert len(allowed(second, [], ())) == 2


def test_an_end_of_sequence_is_not_drafted():
    state = GRAMMARS.start(Grammar.regex("[ab]*"), 0)
    a = TOKENIZER("a")["input_ids"][0]
    assert state.weave(tree_of([END, a, END], [-1, -1, 1]), 10).token_ids.tolist() == [a]


def test_an_empty_draft_stays_one_where_nothing_is_forced():
    assert not len(GRAMMARS.start(Grammar.regex("[ab]+"), 0).weave(DraftTree.empty(), 10))


def test_without_a_grammar_nothing_of_it_is_loaded():
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    engine.generate(GenerationRequest((1, 2), max_tokens=3))
    assert "grammars" not in vars(engine)
