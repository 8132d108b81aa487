"""Serve the explorer's page on this machine alone: a loopback address, a token in every address, no files."""

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable
from typing import Any

from flax_transformer.report.explore import explore_page
from flax_transformer.task.explore.explorer import Explorer

LARGEST = 12 << 20
"""Bytes of a request at most."""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def new_token() -> str:
    """Draw what only who started the server knows."""
    return secrets.token_urlsafe(24)


def check_loopback(host: str) -> str:
    """Return a host that only this machine reaches.

    Raises:
      ValueError: any other.

    >>> check_loopback("127.0.0.1")
    '127.0.0.1'
    """
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise ValueError(f"the explorer is served on a loopback address alone, such as 127.0.0.1, got {host!r}")
    return host


def make_app(explorer: Explorer, token: str) -> Any:
    """Make the application: the page at `/TOKEN/`, and each view at `/TOKEN/VIEW` for a POST of JSON.

    Anything else, a wrong token among them, is not found; a Host that is not loopback is refused, so that no other
    page's name can be pointed here.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    page = explore_page(explorer.facts(), explorer.first, served=True)

    def refusal(request: Request) -> Response | None:
        host = (request.headers.get("host") or "").rsplit(":", 1)[0].strip("[]")
        try:
            check_loopback(host)
        except ValueError as error:
            return PlainTextResponse(str(error), 403, headers=HEADERS)
        if not hmac.compare_digest(request.path_params["token"].encode(), token.encode()):
            return PlainTextResponse("not found", 404, headers=HEADERS)
        return None

    async def show(request: Request) -> Response:
        return refusal(request) or HTMLResponse(page, headers=HEADERS)

    async def answer(request: Request) -> Response:
        if (refused := refusal(request)) is not None:
            return refused
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "a request must be JSON"}, 415, headers=HEADERS)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                error = {"error": f"a request must have at most {LARGEST:,} bytes"}
                return JSONResponse(error, 413, headers=HEADERS)
        status, found = await run_in_threadpool(_answered, explorer, request.path_params["view"], body)
        return Response(found, status, media_type="application/json", headers=HEADERS)

    return Starlette(routes=[Route("/{token}/", show), Route("/{token}/{view}", answer, methods=["POST"])])


def _answered(explorer: Explorer, view: str, body: bytes) -> tuple[int, str]:
    """Answer the body of a request."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        return 400, _refusal(error)
    return answered(explorer, view, request)


def answered(explorer: Explorer, view: str, request: Any) -> tuple[int, str]:
    """Answer one request by a status of HTTP and JSON; what does not fit it is said in one sentence."""
    try:
        if not isinstance(request, dict) or any(
            not isinstance(request.get(name) or {}, dict) for name in ("input", "other", "off")
        ):
            raise ValueError("a request must be an object, and so must be its input, other and off")
        return 200, to_json(explorer.ask(view, request))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        return 400, _refusal(error)


def _refusal(error: Exception) -> str:
    said = str(error).splitlines() or [type(error).__name__]
    return json.dumps({"error": said[0][:500]})


def to_json(found: Any) -> str:
    """Spell what a view gives; what is no finite number is null."""
    return json.dumps(_finite(found), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    raise TypeError(f"a view gave {type(value).__name__}, which JSON has no word for")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def serve(
    explorer: Explorer, *, host: str = "127.0.0.1", port: int = 0, say: Callable[[str], Any] = print,
    token: str | None = None,
) -> None:  # fmt: skip
    """Serve until interrupted; the address is said once it is open.

    Args:
      port: 0 for any that is free.

    Raises:
      ValueError: a host that is not loopback.
      OSError: a port that is taken.
    """
    check_loopback(host)
    try:
        import uvicorn
    except ImportError as error:
        raise ValueError("the explorer is served by uvicorn: pip install 'flax-transformer[explore]'") from error
    token = token or new_token()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        spelt = f"[{host}]" if ":" in host else host
        say(f"http://{spelt}:{listening.getsockname()[1]}/{token}/")
        config = uvicorn.Config(make_app(explorer, token), log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])
