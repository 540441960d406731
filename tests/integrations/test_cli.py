from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.datastores import contents_of
from typer.testing import CliRunner, Result

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import GroundspeedError, InputError, StoreError
from groundspeed.integrations.cli.app import app
from groundspeed.integrations.cli.explain import describe_step
from groundspeed.types import Grammar

Engine = Retriever = Any
FIELDS = {
    "text",
    "token_ids",
    "finish_reason",
    "stop",
    "seed",
    "passages",
    "grounding",
    "stats",
    "model",
    "device",
    "dtype",
}
STATS = {
    "prompt_tokens",
    "completion_tokens",
    "steps",
    "tokens_per_step",
    "tokens_per_second",
    "drafted",
    "accepted",
    "accepted_by_source",
    "cached_tokens",
    "shared_steps",
    "queued_s",
    "prefill_s",
    "decode_s",
    "decoding",
    "decoding_reason",
}


@pytest.fixture(autouse=True)
def _fakes(engine: Engine, retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groundspeed.integrations.cli.answer.load_engine", lambda *_: engine)
    monkeypatch.setattr("groundspeed.integrations.cli.explain.load_engine", lambda *_: engine)
    monkeypatch.setattr("groundspeed.retrieval.retriever.Retriever.open", lambda *_: retriever)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)


def ask(*arguments: str, **environment: str) -> Result:
    return run("ask", "Why?", "--store", "s", *arguments, **environment)


def raise_when_asked(engine: Engine, error: BaseException) -> None:
    def stream(request: object) -> Any:
        raise error

    engine.stream = stream


def test_ask_prints_answer_sources_quotes_and_speed() -> None:
    result = ask()
    assert result.exit_code == 0
    assert result.stdout.startswith("The cache is compacted indeed, é")
    assert "\n  1  alpha.md, characters 10 to 42\n" in result.stdout
    assert "\n  2  beta.md, characters 0 to 29\n" in result.stdout
    assert '\n  1  "The cache is compacted" (alpha.md, characters 10 to 32)\n' in result.stdout
    assert "tokens per step" in result.stdout
    assert "tokens/s" in result.stdout
    assert "(passage 18, prompt 2)" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(("command", "module"), [("ask", "answer"), ("explain", "explain")])
def test_what_drafts_is_named_on_the_command_line(
    command: str, module: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        f"groundspeed.integrations.cli.{module}.load_engine", lambda *how: given.append(how) or engine
    )
    for drafts in (("--draft-model", "small", "--bridge-tokenizers"), ("--drafter", "lookahead")):
        assert run(command, "Why?", "--store", "s", *drafts).exit_code == 0
    assert [how[-3:] for how in given] == [("small", True, "blend"), (None, False, "lookahead")]


def test_where_there_is_no_terminal_there_are_no_control_characters() -> None:
    for result in (ask(), ask("--color")):
        assert not [char for char in result.output if ord(char) < 32 and char != "\n"]


def test_control_characters_in_an_answer_do_not_reach_a_terminal() -> None:
    output = ask("--color", FORCE_COLOR="1").stdout
    assert "\x1b[31m" not in output
    assert "é�[31m" in output


def test_color_marks_words_by_source_and_explains_the_colours() -> None:
    output = ask("--color", FORCE_COLOR="1").stdout
    green, magenta, reset = "\x1b[32m", "\x1b[95m", "\x1b[0m"
    answer, _, rest = output.partition("\ncolours: ")
    assert f"{green}T{reset}{green}h{reset}{green}e{reset}" in answer
    assert f"{magenta}d{reset}" in answer
    assert ", é" in answer
    assert f"{green}passage 1{reset}" in rest
    assert f"{magenta}prompt{reset}" in rest


@pytest.mark.parametrize("command", ["ask", "generate"])
def test_json_is_one_object_with_every_field(command: str, tmp_path: Path) -> None:
    prompt, document = tmp_path / "prompt.txt", tmp_path / "document.txt"
    prompt.write_text("Say why.")
    document.write_text("Because.")
    if command == "ask":
        result = ask("--json")
    else:
        result = run("generate", "--prompt-file", prompt, "--document", document, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert set(answer) == FIELDS
    assert set(answer["stats"]) == STATS
    assert answer["text"] == "The cache is compacted indeed, é\x1b[31m"
    stats = answer["stats"]
    assert stats["tokens_per_step"] == (stats["accepted"] + stats["steps"]) / stats["steps"] > 1
    assert answer["grounding"][0]["text"] == answer["text"][:22]
    if command == "ask":
        assert answer["passages"][0] == {
            "document_id": "alpha.md",
            "text": "The cache is compacted in place.",
            "start": 10,
            "end": 42,
            "score": 0.5,
            "metadata": {"title": "Alpha"},
            "in_prompt": True,
        }


def test_options_reach_the_engine_and_the_retriever(engine: Engine, retriever: Retriever) -> None:
    ask("-k", "3", "--mode", "dense", "--max-tokens", "9", "--seed", "4", "--no-speculation")
    (request,) = engine.requests
    assert (request.max_tokens, request.seed, request.speculate, request.temperature) == (9, 4, False, 0.0)
    assert retriever.searches == [{"question": "Why?", "k": 3, "mode": "dense", "rerank": None}]


@pytest.mark.parametrize("command", ["ask", "generate"])
def test_settings_of_the_draws_reach_the_engine_and_the_seed_is_shown(
    engine: Engine, command: str, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Say why.")
    settings = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
    options = [
        part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", f"{value}")
    ]
    options += ["--seed", "12"]
    result = ask(*options) if command == "ask" else run("generate", "--prompt-file", prompt, *options)
    assert result.exit_code == 0
    (request,) = engine.requests
    assert {name: getattr(request, name) for name in settings} == settings
    assert request.seed == 12
    assert result.stdout.endswith("\ndrawn with seed 12\n")


def test_an_answer_is_learned_where_that_is_asked_for(engine: Engine, tmp_path: Path) -> None:
    TokenDatastoreWriter.open(tmp_path, TokenizerFingerprint.of(engine.tokenizer)).close()
    assert ask("--datastore", str(tmp_path)).exit_code == 0
    assert ask("--datastore", str(tmp_path), "--learn", "answers").exit_code == 0
    with TokenDatastore.open(tmp_path) as store:
        (learned,) = contents_of(store, "answers").values()
    assert engine.tokenizer.decode(learned) == "".join(text for text, _, _ in engine.script)
    result = ask("--learn", "answers")
    assert result.exit_code == 1
    assert "--datastore" in result.stderr


def test_an_answer_is_written_as_a_page_beside_the_usual_output(tmp_path: Path) -> None:
    result = ask("--html", str(tmp_path / "answer.html"), "--json")
    assert result.exit_code == 0
    assert result.stderr == f"The page is {tmp_path / 'answer.html'}: open it in a browser.\n"
    page = (tmp_path / "answer.html").read_text(encoding="utf-8")
    (shown,) = json.loads(page.partition('id="answers-data">')[2].partition("</script>")[0])
    printed = json.loads(result.stdout)
    assert shown["question"] == "Why?"
    assert {name: shown[name] for name in printed} == printed
    assert "".join(token["text"] for step in shown["steps"] for token in step["tokens"]) == printed["text"]


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_computed(
    engine: Engine, tmp_path: Path
) -> None:
    for file in (tmp_path, tmp_path / "nowhere" / "answer.html"):
        for result in (
            ask("--html", str(file)),
            run("explain", "Why?", "--store", "s", "--html", file),
        ):
            assert result.exit_code == 1
            assert "--html" in result.stderr
    assert not engine.requests


def test_explain_says_of_every_step_what_was_drafted_and_what_came_of_it(tmp_path: Path) -> None:
    result = run("explain", "Why?", "--store", "s", "--html", tmp_path / "answer.html")
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "fake in float32 on cpu\n"
        "passage 1  alpha.md: The cache is compacted in place.\n"
        "passage 2  beta.md: A tree holds what may follow.\n"
        "+ accepted from the draft, = the model's own token, - drafted and rejected\n\n"
        'with the prompt: 0.0 ms\n  + "The cache is compacted"  passage 1\n'
        'step 1: 7 drafted, 6 accepted, 0.0 ms, 0.0 of them the pass\n  + " indeed"  prompt\n'
        "step 2: 9 drafted, 8 accepted, 0.0 ms, 0.0 of them the pass\n"
        '  = ", é\\u001b[31m"  the model itself\n'
        "\nThe cache is compacted indeed, é"
    )
    assert '"The cache is compacted" (alpha.md, characters 10 to 32)' in result.stdout
    assert "\x1b" not in result.stdout
    assert (tmp_path / "answer.html").exists()


def test_explain_as_json_is_the_answer_with_its_steps() -> None:
    answer = json.loads(run("explain", "Why?", "--store", "s", "--json").stdout)
    assert FIELDS | {"question", "speculate", "steps"} <= set(answer)
    assert len(answer["steps"]) == 3


def test_what_was_rejected_is_printed_with_what_the_model_wrote_instead() -> None:
    step = plain_step()
    step["rejected"] = [
        {
            "at": 1,
            "tokens": [{"text": " or", "source": "prompt"}, {"text": "\n", "source": "prompt"}],
            "nodes": 5,
            "prob": 0.25,
            "instead": " and",
        },
        *({**one_branch(), "prob": prob} for prob in (0.2, 0.1, 0.05)),
    ]
    lines = [text.plain for text in describe_step(4, step)]
    assert lines == [
        "step 4: 9 drafted, 1 accepted, 10.0 ms, 6.0 of them the pass",
        '  + "so"  datastore',
        '  = " and"  the model itself',
        '  - " or\\n" and 3 beside it  prompt, 25% expected; the model wrote " and"',
        '  - "x"  passage 3, 20% expected; the answer ends there',
        '  - "x"  passage 3, 10% expected; the answer ends there',
        "  - and 1 more",
    ]


def plain_step() -> dict[str, Any]:
    return {
        "tokens": [{"text": "so", "source": "datastore"}, {"text": " and", "source": "target"}],
        "committed": 2,
        "drafted": 9,
        "accepted": 1,
        "draft_s": 0.001,
        "forward_s": 0.006,
        "accept_s": 0.002,
        "commit_s": 0.001,
    }


def one_branch() -> dict[str, Any]:
    token = {"text": "x", "source": "passage", "passage": 2}
    return {"at": 2, "tokens": [token], "nodes": 1, "prob": 0.1, "instead": None}


def test_greedy_decoding_shows_no_seed() -> None:
    assert "seed" not in ask().stdout
    assert json.loads(ask("--json").stdout)["seed"] is None


def test_generate_uses_the_prompt_as_it_is_and_drafts_from_the_documents(
    engine: Engine, tmp_path: Path
) -> None:
    prompt, document = tmp_path / "prompt.txt", tmp_path / "document.txt"
    prompt.write_text("<|im_start|>Say why.\n")
    document.write_text("Because.")
    assert run("generate", "--prompt-file", prompt, "--document", document).exit_code == 0
    (request,) = engine.requests
    assert request.prompt == "<|im_start|>Say why.\n"
    assert [(passage.document_id, passage.text) for passage in request.passages] == [
        (str(document), "Because.")
    ]


def test_what_ends_and_forms_an_answer_reaches_the_engine(engine: Engine, tmp_path: Path) -> None:
    prompt, schema = tmp_path / "prompt.txt", tmp_path / "schema.json"
    prompt.write_text("Say why.")
    schema.write_text('{"type": "object"}')
    options = ("--stop", "\n\n", "--stop", "END", "--json-schema", schema)
    assert run("generate", "--prompt-file", prompt, *options).exit_code == 0
    (request,) = engine.requests
    assert request.stop == ("\n\n", "END")
    assert request.grammar == Grammar("json_schema", '{"type": "object"}')


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"\xff\xfe", "is not UTF-8 text"), (b" \n", "holds no text")],
)
def test_a_prompt_file_that_cannot_be_used_is_an_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    prompt = tmp_path / "prompt.txt"
    if content is not None:
        prompt.write_bytes(content)
    result = run("generate", "--prompt-file", prompt)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "error", [InputError("top_p is 0.0; it must be more"), StoreError("two\nlines"), GroundspeedError("x")]
)
def test_an_error_is_one_line_on_stderr(engine: Engine, error: GroundspeedError) -> None:
    raise_when_asked(engine, error)
    for result in (ask("--temperature", "0.5"), ask("--json")):
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr == f"error: {' '.join(str(error).split())}\n"


def test_ctrl_c_in_an_answer_ends_the_line_and_exits_130(engine: Engine) -> None:
    whole = list(engine.stream(request=type("Request", (), {"passages": (), "seed": None})()))

    def stream(request: object) -> Any:
        yield from whole[:2]
        raise KeyboardInterrupt

    engine.stream = stream
    result = ask()
    assert result.exit_code == 130
    assert result.stdout == "The cache is compacted\n"
    assert result.stderr == "error: interrupted\n"


def test_a_wrong_command_line_exits_2() -> None:
    assert run("ask", "Why?").exit_code == 2
    assert ask("--max-tokens", "0").exit_code == 2
    assert ask("--temperature", "-1").exit_code == 2
    assert ask("--top-p", "1.5").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_the_version_and_the_commands_are_told() -> None:
    assert run("--version").stdout == "0.1.0\n"
    text = run("--help").stdout
    assert all(command in text for command in ("index", "ask", "generate", "explain", "doctor"))


def test_indexing_a_missing_folder_is_an_error_and_makes_no_store(tmp_path: Path) -> None:
    result = run("index", tmp_path / "nowhere", "--store", tmp_path / "store")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "store").exists()


def test_a_document_over_the_limit_is_refused_with_the_option_that_raises_it(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 400)
    store = tmp_path / "store"
    result = run("index", tmp_path / "long.txt", "--store", store, "--max-document-mb", "0.001")
    assert result.exit_code == 1
    assert "--max-document-mb" in result.stderr
    assert not store.exists()


def test_a_text_too_long_to_be_one_is_refused_at_once(tmp_path: Path) -> None:
    prompt, document = tmp_path / "prompt.txt", tmp_path / "document.txt"
    prompt.write_text("Say why.")
    document.write_text("word " * 900_000)
    result = run("generate", "--prompt-file", prompt, "--document", document)
    assert result.exit_code == 1
    assert "4,500,000 bytes" in result.stderr
