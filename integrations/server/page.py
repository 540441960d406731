"""The page at ``/``. Its files ask for no key; what it asks for does."""

from __future__ import annotations

from fastapi import APIRouter, Response

from groundspeed.integrations.server.errors import ApiError
from groundspeed.integrations.view.html import CONTENT_SECURITY_POLICY, PAGE_FILES, page_file

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def page() -> Response:
    """Give the page."""
    return _file("index.html")


@router.get("/page/{name}")
async def file(name: str) -> Response:
    """Give what the page asks for."""
    if name not in PAGE_FILES:
        raise ApiError(404, "the page has no such file", "not_found")
    return _file(name)


def _file(name: str) -> Response:
    return Response(page_file(name), media_type=PAGE_FILES[name], headers=_HEADERS)
