"""What is trained on a target says what the target says more often, and is kept so that it can be used."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, VOCABULARY, tiny_model
from helpers.tokenizers import byte_tokenizer
from transformers import LlamaConfig
from typer.testing import CliRunner

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.medusa import Medusa
from groundspeed.errors import InputError
from groundspeed.integrations.bench.prompts import BenchPrompt
from groundspeed.integrations.cli.app import app
from groundspeed.integrations.training.alignment import acceptance, align, first_layers
from groundspeed.integrations.training.medusa import head_accuracy, train_heads
from groundspeed.integrations.training.samples import Batch, Sample, answers, batches, blocks, split
from groundspeed.types import GenerationRequest
from groundspeed.verify import loading
from groundspeed.verify.loading import load_model
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.target import TransformersTarget


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target():
    model = tiny_model(TREE_FAMILIES["llama"]()).requires_grad_(False)
    # What it says depends on little but the last token, so that it can be learnt in seconds.
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(1e-4)
    target = TransformersTarget(model)
    assert target.capability.supports_tree, target.capability.reason
    return target


@pytest.fixture(scope="module")
def samples(target):
    """Answers to learn from, and others."""
    rng = np.random.default_rng(0)
    prompts = [BenchPrompt(str(i), tuple(rng.integers(3, VOCABULARY, 6).tolist()), ()) for i in range(120)]
    return split(answers(engine_for(target), prompts, 24), 6)


def test_answers_are_what_the_target_says_behind_the_prompt(target, samples):
    learnt, held_out = samples
    assert (len(learnt), len(held_out)) == (100, 20)
    sample = held_out[0]
    request = GenerationRequest(sample.token_ids[: sample.start], max_tokens=24)
    assert engine_for(target).generate(request).token_ids == sample.token_ids[sample.start :]


def test_a_batch_asks_for_the_tokens_of_the_answers_and_for_no_others(target):
    texts = [Sample((5, 6, 7, 8, 9), 3), Sample((4, 5, 6, 7, 8, 9, 10, 11), 5), Sample((3, 4), 1)]
    batch = Batch(texts)
    assert batch.labels().tolist() == [[-100, 8, 9], [9, 10, 11], [-100, -100, 4]]
    assert batch.labels(1).tolist() == [[8, 9, -100], [10, 11, -100], [-100, 4, -100]]
    with torch.no_grad():
        logits = batch.logits(target.model)
        for row, text in enumerate(texts):
            alone = target.model(torch.tensor([text.token_ids])).logits[0, text.start - 1 : -1]
            torch.testing.assert_close(logits[row, 3 - len(alone) :], alone, atol=1e-3, rtol=1e-3)


def test_batches_hold_every_sample_once_within_their_size():
    texts = [Sample(tuple(range(n)), 1) for n in (3, 9, 4, 4, 2, 8, 5)]
    grouped = batches(texts, 10)
    counts = [(batch.labels() >= 0).sum().item() for batch in grouped]
    assert sum(counts) == sum(len(text.token_ids) - 1 for text in texts)
    assert len(grouped) == 5


def test_plain_text_is_cut_into_pieces_that_are_guessed_but_for_their_first_token():
    assert blocks(range(7), 3) == [Sample((0, 1, 2), 1), Sample((3, 4, 5), 1)]


def test_too_few_texts_are_refused():
    with pytest.raises(InputError, match="at least 6 are needed"):
        split([Sample((1, 2), 1)] * 5, 6)


def test_alignment_raises_the_acceptance_of_a_draft_model_by_half_and_more(target, samples):
    learnt, held_out = samples
    draft = first_layers(target.model, 1)
    before = acceptance(draft, held_out)
    align(draft, learnt, epochs=12, learning_rate=5e-3)
    assert acceptance(draft, held_out) > 1.5 * before > 0
    assert not draft.training
    own = target.model.get_input_embeddings().weight
    assert torch.equal(draft.get_input_embeddings().weight, own)


@pytest.mark.parametrize("layers", [0, 3])
def test_a_draft_model_has_fewer_layers_than_its_target(target, layers):
    with pytest.raises(InputError, match="fewer than it has"):
        first_layers(target.model, layers)


def test_trained_heads_guess_ahead_and_leave_the_target_as_it_was(target, samples):
    learnt, held_out = samples
    weights = {name: tensor.clone() for name, tensor in target.model.state_dict().items()}
    untrained = MedusaHeads(32, 2)
    heads = train_heads(target.model, learnt, count=2, epochs=12, learning_rate=5e-3)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in target.model.state_dict().items())
    before, after = (head_accuracy(target.model, which, held_out) for which in (untrained, heads))
    assert after[0] > before[0] + 0.1
    engine = engine_for(target, Medusa(heads))
    steps = [
        engine.generate(GenerationRequest(sample.token_ids[: sample.start], max_tokens=24)).stats
        for sample in held_out
    ]
    assert sum(s.accepted for s in steps) / sum(s.steps for s in steps) > after[0] / 2


def test_a_datastore_that_took_in_answers_drafts_more_of_the_answers_to_other_questions(
    target, samples, tmp_path
):
    learnt, held_out = samples
    tokens = TokenizerFingerprint("words", VOCABULARY, "words")

    def tokens_per_step(drafter, asked):
        engine = engine_for(target, drafter)
        requests = [GenerationRequest(sample.token_ids[: sample.start], max_tokens=24) for sample in asked]
        stats = [engine.generate(request).stats for request in requests]
        return 1 + sum(one.accepted for one in stats) / sum(one.steps for one in stats)

    with TokenDatastoreWriter.open(tmp_path, tokens, background=False) as writer:
        first = Blend(writer, learn=lambda ids: writer.learn("answers", ids, max_tokens=10_000))
        before = tokens_per_step(first, learnt[:40])
        without, after = tokens_per_step(Blend(), held_out), tokens_per_step(Blend(writer), held_out)
    assert after > 1.1 * without
    assert after > 1.1 * before


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny model whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=256, bos_token_id=256,
        pad_token_id=256, initializer_range=0.3,
    )  # fmt: skip
    tiny_model(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def run(*arguments):
    result = CliRunner().invoke(app, ["train", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout) if not result.exit_code else result.output


@pytest.fixture
def loads(monkeypatch):
    """Names of the models that are loaded."""
    names = []
    monkeypatch.setattr(loading, "load_model", lambda *how: names.append(how[0]) or load_model(*how))
    return names


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"What is {i}?"}) + "\n" for i in range(12)))
    return path


def test_the_command_trains_heads_that_an_engine_can_use(tmp_path, model_folder, questions, loads):
    text = tmp_path / "text.txt"
    text.write_text("A tree holds what may follow. " * 40)
    how = ("--model", model_folder, "--dtype", "float32", "--max-tokens", 8, "--epochs", 1, "--heads", 2)
    code, figures = run("medusa", questions, text, "--out", tmp_path / "heads", *how)
    assert code == 0, figures
    assert (figures["texts"], figures["held_out"]) == (15, 2)
    assert len(figures["accuracy"]) == 2
    assert MedusaHeads.load(tmp_path / "heads").count == 2
    assert loads == [str(model_folder)]


def test_the_command_trains_a_draft_model_and_reports_its_acceptance(
    tmp_path, model_folder, questions, loads
):
    how = ("--model", model_folder, "--dtype", "float32", "--max-tokens", 8, "--epochs", 1, "--layers", 1)
    code, figures = run("draft", questions, "--out", tmp_path / "draft", *how)
    assert code == 0, figures
    assert 0 <= figures["acceptance_before"] <= 1
    assert 0 <= figures["acceptance"] <= 1
    assert loads == [str(model_folder)]
    assert load_model(str(tmp_path / "draft"), "cpu", "float32").model.config.num_hidden_layers == 1


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path, model_folder, questions):
    other = tmp_path / "other"
    tiny_model(TREE_FAMILIES["llama"]()).save_pretrained(other)
    byte_tokenizer().save_pretrained(other)
    how = ("--model", model_folder, "--dtype", "float32", "--max-tokens", 8)
    code, output = run("draft", questions, "--out", tmp_path / "draft", "--draft", other, *how)
    assert code == 1
    assert "has 97 tokens" in output
