"""``groundspeed serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from groundspeed.errors import MissingDependencyError
from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import print_note
from groundspeed.integrations.cli.options import load_engine

__all__ = ["serve"]

_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    model: options.Model = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder of a document store; made by the first document added.")
    ] = None,
    embedding_model: options.EmbeddingModel = None,
    datastore: options.Datastore = None,
    drafter: options.Drafter = "blend",
    draft_model: options.DraftModel = None,
    bridge_tokenizers: options.BridgeTokenizers = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model; by default its own name.")
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="TOML file of keys and their namespaces; GROUNDSPEED_API_KEYS holds further ones."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may call; may be repeated; by default none.")
    ] = None,
    max_active: Annotated[int, typer.Option(min=1, help="Most requests answered at once.")] = 16,
    max_waiting: Annotated[int, typer.Option(min=0, help="Most requests that wait; more get a 429.")] = 64,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Longest body, in millions of bytes.")] = 8,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt; by default what the model's context holds.")
    ] = None,
    max_documents: Annotated[int, typer.Option(min=0, help="Most documents that come with a request.")] = 100,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Length of a chat answer whose request names none.")
    ] = 1024,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which an answer ends as it is.")
    ] = 600,
    stall: Annotated[
        float, typer.Option(min=0.1, help="Seconds for which a client may send or take nothing.")
    ] = 30,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that answers may go on after a signal.")] = 60,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts and answers into the log.")
    ] = False,
) -> None:
    """Serve OpenAI's API, and the store, over HTTP."""
    try:
        from groundspeed.integrations.server.app import create_app
        from groundspeed.integrations.server.keys import ENVIRONMENT, Keys
        from groundspeed.integrations.server.run import make_server, write_log
        from groundspeed.integrations.server.settings import Settings
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the server needs {error.name}, which is not installed: pip install 'groundspeed[serve]'"
        ) from error
    keys = Keys.load(api_keys)
    settings = Settings(
        model=name,
        store=store,
        datastore=None if store is None else datastore,
        embedding_model=embedding_model,
        keys=keys,
        cors_origins=tuple(cors_origin or ()),
        body_bytes=int(max_body_mb * 1e6),
        prompt_tokens=max_prompt_tokens,
        answer_tokens=max_tokens,
        documents=max_documents,
        waiting=max_waiting,
        request_seconds=timeout,
        stall_seconds=stall,
        log_prompts=log_prompts,
    )
    if not len(keys) and host not in _LOCAL:
        print_note(f"anyone who reaches {host}:{port} may ask; give --api-keys FILE, or set {ENVIRONMENT}")
    if settings.datastore is not None:
        _make_datastore(settings.datastore, model)
    engine = load_engine(
        model, device, dtype, datastore, draft_model, bridge_tokenizers, drafter, most_active=max_active
    )
    app = create_app(engine, settings)
    write_log(log_prompts=log_prompts)
    make_server(app, host, port, drain).run()


def _make_datastore(folder: Path, model: str | None) -> None:
    """Make the datastore, as the store is made, where there is none: it will get documents over HTTP."""
    from groundspeed.datastores.fingerprint import TokenizerFingerprint
    from groundspeed.datastores.tokens import is_token_datastore
    from groundspeed.datastores.writer import TokenDatastoreWriter
    from groundspeed.verify.loading import load_tokenizer

    if not is_token_datastore(folder):
        TokenDatastoreWriter.open(folder, TokenizerFingerprint.of(load_tokenizer(model))).close()
