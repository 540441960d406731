"""``generate`` with our loop says what it says with its own."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import threading
import weakref

import numpy as np
import pytest
import torch
from helpers.engines import Words, draft_freely
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import groundspeed
from groundspeed import InputError, groundspeed_generate
from groundspeed.verify.draws import draw

NEW = 40
FAMILIES = {**TREE_FAMILIES, **{name: config for name, (_, config) in OTHER_FAMILIES.items()}}


def batch(rows=3, seed=0):
    """Prompts of 9 to 20 tokens with padding on the left, and their mask."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(9, 21, rows))[::-1]
    ids = torch.zeros(rows, int(lengths[0]), dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[len(row) - length :] = torch.from_numpy(rng.integers(3, VOCABULARY, length))
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def one():
    return {name: tensor[:1] for name, tensor in batch(1).items()}


@pytest.fixture(scope="module")
def llama():
    return tiny_model(TREE_FAMILIES["llama"]())


def ours(model, inputs, **settings):
    settings = {"max_new_tokens": NEW, "do_sample": False, **settings}
    return model.generate(**inputs, custom_generate=groundspeed_generate, **settings)


def theirs(model, inputs, **settings):
    return model.generate(**inputs, **{"max_new_tokens": NEW, "do_sample": False, **settings})


def assert_same(model, inputs, **settings):
    got, wanted = ours(model, inputs, **settings), theirs(model, inputs, **settings)
    assert got.dtype == wanted.dtype
    assert got.tolist() == wanted.tolist()
    return got


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_rows_of_a_padded_batch_are_those_of_generate(family):
    # These two see the padding themselves in transformers, so rows beside longer ones say something else.
    rows = 1 if family in ("lfm2", "mamba") else 3
    assert_same(tiny_model(FAMILIES[family]()), batch(rows), pad_token_id=0)


def test_drafts_save_passes(llama, monkeypatch):
    draft_freely(monkeypatch)  # a pass of a tiny model is quicker than a draft
    passes = []
    forward = llama.forward
    ours(llama, one())  # what the first call tries out does not count

    def counted(*args, **kwargs):
        passes.append(1)
        return forward(*args, **kwargs)

    counted.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(llama, "forward", counted)
    assert_same(llama, one(), max_new_tokens=200)
    assert len(passes) < 200 + 150


@pytest.mark.parametrize("ends", [[5], [5, 11, 40, 41, 42, 43, 44]])
def test_rows_end_with_their_own_end_of_sequence_token(llama, ends):
    got = assert_same(llama, batch(5), eos_token_id=ends, pad_token_id=0)
    answers = got[:, batch(5)["input_ids"].shape[1] :]
    assert len(ends) == 1 or any(token in ends for token in answers.flatten().tolist())


def test_an_end_of_sequence_token_of_the_model_ends_rows_too(llama):
    first = theirs(llama, one())[0, -NEW:].tolist()
    model = copy.deepcopy(llama)
    model.generation_config.eos_token_id = first[len(first) // 2]
    got = assert_same(model, one(), pad_token_id=0)
    assert got[0, -1] == first[len(first) // 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 30, "eos_token_id": 7},
        {"bad_words_ids": [[5], [9, 11]], "sequence_bias": [[[20], 3.0]]},
        {"max_length": 60, "max_new_tokens": None},
        {"use_cache": False},
        {"num_return_sequences": 1, "forced_eos_token_id": 4, "eos_token_id": 4},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_the_generation_config_hold_padding_and_all(llama, settings):
    assert_same(llama, batch(3), pad_token_id=0, **settings)


class Counting(LogitsProcessor):
    """Keeps a state: what it excludes depends on how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        assert input_ids.shape[1] >= self.calls
        scores[:, self.calls % 5 :: 5] = float("-inf")
        return scores


def test_a_processor_with_a_state_is_called_once_for_every_token_of_every_row(llama):
    for inputs in (one(), batch(3)):
        got = ours(llama, inputs, logits_processor=LogitsProcessorList([Counting()]), pad_token_id=0)
        wanted = theirs(llama, inputs, logits_processor=LogitsProcessorList([Counting()]), pad_token_id=0)
        assert got.tolist() == wanted.tolist()


class AtSum(StoppingCriteria):
    """Ends a row once its last three tokens add up to a multiple of seven."""

    def __call__(self, input_ids, scores, **kwargs):
        assert scores is None
        return input_ids[:, -3:].sum(1) % 7 == 0


def test_stopping_criteria_end_a_row_behind_the_token_they_end_it_at(llama):
    # An end-of-sequence token that never comes makes generate fill up rows that a criterion has ended.
    criteria = StoppingCriteriaList([AtSum()])
    for rows in (1, 4):
        got = assert_same(llama, batch(rows), stopping_criteria=criteria, eos_token_id=96, pad_token_id=0)
        assert got.shape[1] < batch(rows)["input_ids"].shape[1] + NEW


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_k": 0, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 12, "min_p": 0.02, "repetition_penalty": 1.2},
        {"temperature": 1.0, "top_k": 0, "typical_p": 0.9},
    ],
    ids=["top_p", "top_k", "typical_p"],
)
def test_drawn_tokens_are_those_of_generate_with_the_same_draws(llama, settings, monkeypatch):
    inputs = one()
    torch.manual_seed(3)
    got = ours(llama, inputs, do_sample=True, **settings)
    torch.manual_seed(3)
    seed = int(torch.randint(2**63 - 1, (1,)))
    position = inputs["input_ids"].shape[1]

    def multinomial(probabilities, num_samples):
        nonlocal position
        position += 1
        return torch.tensor([[draw(probabilities[0].log().numpy(), seed, position - 1)]])

    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", multinomial)
        wanted = theirs(llama, inputs, do_sample=True, **settings)
    assert got.tolist() == wanted.tolist()


def test_the_global_seed_fixes_the_draws_and_rows_of_one_prompt_differ(llama):
    settings = {"do_sample": True, "num_return_sequences": 4, "pad_token_id": 0}
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(ours(llama, one(), **settings).tolist())
    assert texts[0] == texts[1] != texts[2]
    assert len({tuple(row) for row in texts[0]}) == 4


class Noting:
    """A streamer that notes what it is given."""

    def __init__(self):
        self.puts, self.ended = [], False

    def put(self, value):
        assert not self.ended
        self.puts.append(value.tolist())

    def end(self):
        self.ended = True


def test_a_streamer_is_given_what_generate_gives_it(llama):
    mine, other = Noting(), Noting()
    settings = {"eos_token_id": 5, "pad_token_id": 0}
    ours(llama, one(), token_streamer=mine, **settings)
    theirs(llama, one(), streamer=other, **settings)
    assert mine.puts == other.puts
    assert mine.ended
    assert other.ended


def test_passages_are_drafted_from_and_change_no_token(llama):
    wanted = theirs(llama, one())
    text = " ".join(map(str, wanted[0, -NEW:].tolist()))
    assert ours(llama, one(), draft_passages=[text], draft_tokenizer=Words()).tolist() == wanted.tolist()
    with pytest.raises(InputError, match="draft_tokenizer"):
        ours(llama, one(), draft_passages=[text])


def test_a_dictionary_is_returned_where_it_is_asked_for(llama):
    got = ours(llama, one(), return_dict_in_generate=True)
    wanted = theirs(llama, one(), return_dict_in_generate=True)
    assert type(got) is type(wanted)
    assert got.sequences.tolist() == wanted.sequences.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [row + 3]}, "which row"),
        ({"token_streamer": Noting()}, "takes the tokens of one"),
    ],
)
def test_what_is_not_served_is_refused_by_name(llama, settings, message):
    with pytest.raises(InputError, match=message):
        ours(llama, batch(2), pad_token_id=0, **settings)


def test_inputs_that_cannot_be_served_are_refused(llama):
    from transformers import DynamicCache

    inputs = one()
    with pytest.raises(InputError, match="keys and values are kept elsewhere"):
        ours(llama, inputs, cache=DynamicCache())
    embeds = llama.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(InputError, match="inputs_embeds"):
        ours(llama, {"inputs_embeds": embeds})
    with pytest.raises(InputError, match="position_ids"):
        ours(llama, inputs, position_ids=torch.arange(inputs["input_ids"].shape[1])[None] + 1)
    right = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"].clone()}
    right["attention_mask"][0, -1] = 0
    with pytest.raises(InputError, match="padding on the left"):
        ours(llama, right)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="autocast"):
        ours(llama, inputs)
    model = copy.deepcopy(llama).train()
    with pytest.raises(InputError, match="training mode"):
        ours(model, inputs)
    model = copy.deepcopy(llama)
    model.generation_config.pad_token_id = None
    with pytest.raises(InputError, match="padding token"):
        ours(model, batch(4), stopping_criteria=StoppingCriteriaList([AtSum()]))


def test_an_error_of_a_processor_reaches_the_caller_and_the_next_call_works(llama):
    def broken(input_ids, scores):
        if input_ids.shape[1] > 30:
            raise ZeroDivisionError("broken")
        return scores

    with pytest.raises(ZeroDivisionError, match="broken"):
        ours(llama, batch(3), logits_processor=LogitsProcessorList([broken]), pad_token_id=0)
    assert_same(llama, batch(3), pad_token_id=0)


def test_changed_weights_are_seen(llama):
    model = copy.deepcopy(llama)
    assert_same(model, one())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    assert_same(model, one())
    assert_same(model.double(), one())


def test_the_model_keeps_one_engine_and_both_go_together(llama):
    model = copy.deepcopy(llama)
    ours(model, one())
    kept = model._groundspeed
    engine = kept._engine
    ours(model, batch(2), pad_token_id=0)
    assert kept._engine is engine
    assert copy.deepcopy(model)._groundspeed._engine is None
    torch.save(model, file := io.BytesIO())
    assert file.tell() > 0
    for thread in threading.enumerate():
        if thread.name == "groundspeed":
            thread.join()  # it ends when there is nothing to do
    gone = [weakref.ref(model), weakref.ref(engine)]
    del model, kept, engine
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_the_door_is_in_front():
    assert groundspeed.groundspeed_generate is groundspeed_generate
