"""POST /recommend and its batch: each handler turns a checked request into the use case's call, and back.

A batch answers every entry by itself: a recommendation, or the problem document that the entry would have got alone.
"""

from typing import Any

import structlog
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from service.api.problems import JsonResponse, problem_content, validation_content
from service.api.quota import charge
from service.api.recommend_schemas import BatchRequest, BatchResponse, RecommendRequest, RecommendResponse
from service.errors import RequestError
from service.recommend import Recommender
from service.recommendation import Explanation, Recommendation


def recommend_router(recommender: Recommender) -> APIRouter:
    """The recommendation routes."""
    router = APIRouter(tags=["recommend"])

    @router.post("/recommend", response_model=RecommendResponse, summary="What next for a user or a history")
    async def recommend(body: RecommendRequest) -> Response:
        answer = await recommender.recommend(body.query())
        _log_context(body, answer)
        return JsonResponse(_shown(answer))

    @router.post("/recommend:batch", response_model=BatchResponse, summary="Up to 256 requests, answered one by one")
    async def recommend_batch(body: BatchRequest, request: Request) -> Response:
        charge(request.scope, len(body.requests) - 1)
        checked = [_check(entry) for entry in body.requests]
        queries = [entry.query() for entry in checked if isinstance(entry, RecommendRequest)]
        answers = iter(await recommender.recommend_many(queries) if queries else ())
        results = [
            _result(request, entry, next(answers) if isinstance(entry, RecommendRequest) else entry)
            for entry in checked
        ]
        return JsonResponse({"results": results})

    return router


def _check(entry: Any) -> RecommendRequest | ValidationError:
    try:
        return RecommendRequest.model_validate(entry)
    except ValidationError as error:
        return error


def _result(request: Request, entry: Any, outcome: Recommendation | RequestError | ValidationError) -> dict[str, Any]:
    if isinstance(outcome, Recommendation):
        _log_context(entry, outcome)
        return {"status": 200, "recommendation": _shown(outcome)}
    if isinstance(outcome, RequestError):
        content = problem_content(request.scope, outcome)
    else:
        located = [{**error, "loc": ("body", *error["loc"])} for error in outcome.errors(include_input=False)]
        content = validation_content(request.scope, RequestValidationError(located))
    return {"status": content["status"], "problem": content}


def _log_context(body: RecommendRequest, answer: Recommendation) -> None:
    if body.context:
        log = structlog.get_logger()
        log.info("recommendation", recommendation_id=answer.recommendation_id, context=body.context)


def _shown(answer: Recommendation) -> dict[str, Any]:
    """The answer as JSON shows it: an explanation only where one was asked for."""
    return {
        "recommendation_id": answer.recommendation_id,
        "items": [_shown_item(item) for item in answer.items],
        "degraded": answer.degraded,
        "degraded_reasons": answer.degraded_reasons,
        "model_version": answer.model_version,
        "catalog_version": answer.catalog_version,
        "took_ms": answer.took_ms,
    }


def _shown_item(item: Any) -> dict[str, Any]:
    names = ("item_id", "score", "rank", "source", "semantic_id", "title")
    shown = {name: getattr(item, name) for name in names}
    return shown if item.explanation is None else shown | {"explanation": _shown_explanation(item.explanation)}


def _shown_explanation(explanation: Explanation) -> dict[str, Any]:
    shown: dict[str, Any] = {"history": explanation.history, "level_scores": explanation.level_scores}
    return shown if explanation.blend is None else shown | {"blend": explanation.blend}
