"""How an answer is drawn, and what it is drafted from: the fields that bodies have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groundspeed.integrations.server.bodies import Body
from groundspeed.integrations.server.errors import invalid
from groundspeed.types import Passage

if TYPE_CHECKING:
    from groundspeed.integrations.pipeline import GenerationOptions
    from groundspeed.integrations.server.serving import Serving

__all__ = ["OpenAIBody", "SamplingBody", "TextPart", "joined"]

_SEEDS = 2**64

StopString = Annotated[str, Field(min_length=1, max_length=1000)]


class TextPart(BaseModel):
    """A part of a message; the model reads text only."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


def joined(content: str | list[TextPart] | None) -> str:
    """The text of a message, or of what else comes in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


class SamplingBody(Body):
    """Fields of ``GenerationRequest`` under the names of OpenAI's API, and further ones under our own.

    A field that is null is one that was left out.
    """

    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy decoding; by default 1.")
    top_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=_SEEDS, description="The same one gives the same answer.")
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None

    top_k: int | None = Field(None, ge=0, le=2**31, description="0 draws from all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(None, max_length=100)
    speculate: bool | None = Field(None, description="False decodes plainly, one token a pass.")

    def options(self, serving: Serving) -> GenerationOptions:
        """What of a request they set, and the time that it may take."""
        options: dict[str, Any] = {
            name: value
            for name in (
                "top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens", "speculate", "logit_bias",
                "presence_penalty", "frequency_penalty",
            )
            if (value := getattr(self, name)) is not None
        }  # fmt: skip
        options["temperature"] = 1.0 if self.temperature is None else self.temperature
        if self.top_p is not None:
            # The engine's begins above 0; of one so small, one token is left.
            options["top_p"] = max(self.top_p, 1e-9)
        if self.seed is not None:
            options["seed"] = self.seed % _SEEDS  # OpenAI's seeds may be negative
        if self.stop is not None:
            options["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            options["stop_token_ids"] = tuple(self.stop_token_ids)
        options["timeout"] = serving.settings.request_seconds
        made: GenerationOptions = options  # type: ignore[assignment]
        return made


class DraftDocument(BaseModel):
    """A text to draft from and to ground in; it does not change the prompt."""

    model_config = ConfigDict(extra="forbid")

    text: str
    id: str | None = None
    start: int = Field(
        default=0, ge=0, le=2**53, description="Where in its document the text begins, in characters."
    )
    following: str = Field(default="", description="What stands behind the text in its document.")
    metadata: dict[str, Any] = Field(default_factory=dict)


class Prediction(BaseModel):
    """What the answer will probably say, as OpenAI's API takes it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["content"]
    content: str | list[TextPart]


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class OpenAIBody(SamplingBody):
    """What bodies of OpenAI's API have in common; they bring along what to draft from."""

    model: str
    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Ignored.")
    draft_documents: list[str | DraftDocument] | None = None
    prediction: Prediction | None = None

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with what it took."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def documents(self, serving: Serving) -> tuple[Passage, ...]:
        """The documents as passages.

        Raises:
            ApiError: There are too many, or they are too long.
        """
        settings, given = serving.settings, self.draft_documents or []
        if len(given) > settings.documents:
            raise invalid(
                f"{len(given)} documents were given and {settings.documents} are the most; give the best",
                param="draft_documents",
            )
        documents = [DraftDocument(text=one) if isinstance(one, str) else one for one in given]
        texts = [*(one.text + one.following for one in documents), self.predicted()]
        if (characters := sum(map(len, texts))) > settings.document_characters:
            raise invalid(
                f"draft_documents and prediction have {characters:,} characters and "
                f"{settings.document_characters:,} are the most; give the parts that matter",
                param="draft_documents",
            )
        return tuple(
            Passage(
                one.id or f"document-{number}",
                one.text,
                one.start,
                metadata=one.metadata,
                following=one.following,
            )
            for number, one in enumerate(documents)
        )

    def predicted(self) -> str:
        """What the answer will probably say."""
        return joined(self.prediction.content) if self.prediction else ""
