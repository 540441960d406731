"""What the proposer is told in vLLM's ``additional_config``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from groundspeed.errors import InputError

__all__ = ["Settings"]

_KEY = "groundspeed"


class Settings(BaseModel):
    """The object under ``groundspeed`` in ``additional_config``.

    Attributes:
        datastore: Folder of a token datastore of the model's tokenizer, on each node, to draft from as well;
            a ``calibration.npz`` in it is gone on from.
        namespaces: What requests may see of it; all by default.
        max_document_tokens: So many tokens of a request's documents are drafted from, the best documents
            first; a token takes about 0.6 us and 250 bytes to index.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    datastore: Path | None = None
    namespaces: tuple[str, ...] | None = None
    max_document_tokens: int = Field(default=1 << 16, ge=0)

    @classmethod
    def of(cls, additional_config: Any) -> Settings:
        """Read them.

        Args:
            additional_config: vLLM's; what others have put there is left alone.

        Raises:
            InputError: Something there that is no setting.
        """
        given = additional_config.get(_KEY, {}) if isinstance(additional_config, dict) else {}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            found = "; ".join(
                f"{'.'.join(map(str, (_KEY, *each['loc'])))} is {each['input']!r}: {each['msg']}"
                for each in error.errors()
            )
            raise InputError(
                f"additional_config does not fit ({found}); the settings are {', '.join(cls.model_fields)}"
            ) from error
