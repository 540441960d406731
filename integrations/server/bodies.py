"""What the bodies of requests have in common."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["Body"]


class Body(BaseModel):
    """A body: fields that it does not know are refused, and so is what cannot be sent back."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsendable(cls, value: Any) -> Any:
        if isinstance(value, bytes):  # of another type, so that it was not read
            raise ValueError("the body is not JSON, or its content-type is not application/json")
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                "it holds a lone surrogate, half of a character; send whole characters"
            ) from error
        except ValueError as error:
            raise ValueError("it holds NaN or an infinite number; send finite ones") from error
        return value
