"""Errors as RFC 9457 problem details: one place from an exception to an answer.

The one thing not to break: nothing internal gets out. A bug is logged with its traceback and
answered with a sentence; values of the caller are never repeated.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from litestar import Request, Response
from litestar.exceptions import HTTPException

from contracts.errors import Fault, Retryable
from contracts.types import Details, Wire
from shared.db import is_transient
from shared.log import logger

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
_TITLES: Final = {
    "NOT_FOUND": "Not found",
    "ALREADY_EXISTS": "Already exists",
    "VALIDATION_ERROR": "Cannot be understood",
    "EXPORT_TOO_LARGE": "Too large",
    "AUTHENTICATION_ERROR": "Not authenticated",
    "AUTHORIZATION_ERROR": "Not allowed",
    "BAD_REQUEST": "Refused",
    "RATE_LIMIT_EXCEEDED": "Too often",
    "EXTERNAL_SERVICE_ERROR": "Try again",
    "INTERNAL_ERROR": "Internal error",
}
_OF_FRAMEWORK: Final = {
    400: ("BAD_REQUEST", "bad_request", "the request is malformed"),
    404: ("NOT_FOUND", "route_unknown", "there is no such route: see /api/v1/docs"),
    405: ("BAD_REQUEST", "method_not_allowed", "this route does not take that method"),
    413: ("BAD_REQUEST", "body_too_large", "the body has more than 1 MiB: send less at once"),
}
"""What Litestar itself refuses, in our words."""


class Problem(Wire):
    """RFC 9457 problem details, with a code that programs may rely on (facts.md 1.3)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    reason: str
    details: Details


def problem_of(fault: Fault) -> Problem:
    """Describe a fault."""
    return _problem(fault.code, fault.status, fault.reason, fault.message, fault.details)


def _problem(code: str, status: int, reason: str, detail: str, details: Details) -> Problem:
    return Problem(
        type=f"urn:rienda:problem:{reason.replace('_', '-')}",
        title=_TITLES.get(code, "Refused"),
        status=status,
        detail=detail,
        code=code,
        reason=reason,
        details=details,
    )


def on_fault(request: Request[Any, Any, Any], fault: Fault) -> Response[bytes]:
    """Answer an anticipated failure."""
    if fault.status >= 500 and not isinstance(fault, Retryable):
        logger().error("request_failed", path=request.scope.get("path_template"), exc_info=fault)
    return _respond(problem_of(fault))


def on_framework(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer what the framework refused before a route was reached."""
    code, reason, detail = _OF_FRAMEWORK.get(error.status_code, _OF_FRAMEWORK[400])
    response = _respond(_problem(code, error.status_code, reason, detail, {}))
    if allow := (error.headers or {}).get("allow"):
        response.headers["allow"] = allow
    return response


def on_other(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer 503 while a server is away, and 500 for a bug, which is logged."""
    path = request.scope.get("path_template")
    if is_transient(error):
        logger().warning("request_waits", path=path, cause=type(error).__name__)
        return _respond(
            problem_of(Retryable("the database is away: try again", reason="database_away"))
        )
    logger().error("request_failed", path=path, exc_info=error)
    return _respond(problem_of(Fault("the request failed; it is logged")))


def _respond(problem: Problem) -> Response[bytes]:
    headers: dict[str, str] = {}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if problem.status == 429:
        headers["retry-after"] = str(problem.details["retry_after_s"])
    return Response(
        content=orjson.dumps(problem.model_dump(mode="json")),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=headers,
    )
