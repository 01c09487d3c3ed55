"""Bytes bound tokens where a request is words; what is not words is refused, not guessed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.channels.client import Channel
from services.channels.errors import NotWords
from services.channels.estimates import TOOLS_TOKENS, input_tokens_at_most
from tests.unit.channels.recording import CONTEXT, TOKENS

TOOL = {
    "name": "send_mail",
    "description": "Send a mail.",
    "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}},
}


def said(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_every_byte_of_words_may_be_a_token() -> None:
    short, long = (input_tokens_at_most([said(text)]) for text in ("ñ", "ñ" * 101))
    assert long - short == 200


def test_the_schemas_of_tools_are_input_as_well() -> None:
    bare = input_tokens_at_most([said("hello")])
    with_tools = input_tokens_at_most([said("hello")], tools=[TOOL])
    assert with_tools > bare + TOOLS_TOKENS + len(str(TOOL["description"]))
    more = input_tokens_at_most([said("hello")], tools=[TOOL, TOOL])
    assert more > with_tools


def test_parts_that_are_words_are_counted_wherever_they_stand() -> None:
    messages = [
        said([{"type": "text", "text": "look"}]),
        {"role": "assistant", "content": [{"type": "tool_use", "input": {"type": "image"}}]},
        said([{"type": "tool_result", "content": [{"type": "text", "text": "x" * 500}]}]),
    ]
    assert input_tokens_at_most(messages, system=[{"type": "text", "text": "be kind"}]) > 500


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "data": "x" * 9_000}},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {"type": "tool_result", "content": [{"type": "image", "source": {}}]},
    ],
)
def test_what_is_no_words_is_refused_with_what_to_do(part: dict[str, Any]) -> None:
    with pytest.raises(NotWords, match="state input_tokens_max") as caught:
        input_tokens_at_most([said([{"type": "text", "text": "what is this?"}, part])])
    assert caught.value.kind in ("image", "image_url", "input_audio", "document")


@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=50), max_size=5))
def test_the_bound_is_never_below_the_bytes_of_the_words(texts: list[str]) -> None:
    bound = input_tokens_at_most([said(text) for text in texts])
    assert bound >= sum(len(text.encode()) for text in texts)


async def test_what_is_stated_is_asked(channel: Channel, transport: Any) -> None:
    counts = {"web_searches": 2}
    async with (
        channel.run(**CONTEXT) as run,
        run.request(
            model="m", input_tokens_max=9, media=["audio_input"], tool_counts_max=counts
        ) as request,
        run.request(model="m") as silent,
    ):
        request.report(TOKENS)
        silent.report(TOKENS)
    async with channel.ingest(ingestion_id="i1", model="m", media=[]) as ingestion:
        ingestion.report(TOKENS)
    stated, unstated, ingested = transport.asked
    assert (stated.media, stated.tool_counts_max) == (("audio_input",), counts)
    assert (unstated.media, unstated.tool_counts_max) == (None, {})
    assert ingested.media == ()


async def test_input_that_was_ruled_out_is_counted_as_none(
    channel: Channel, transport: Any
) -> None:
    drawn = {"output_image_tokens": 9}
    async with (
        channel.run(**CONTEXT) as run,
        run.request(model="m", media=["image_input"]) as seeing,
        run.request(model="m") as silent,
    ):
        seeing.report(TOKENS, tool_counts=drawn)
        silent.report(TOKENS)
    async with channel.ingest(ingestion_id="i1", model="m", media=[]) as ingestion:
        ingestion.report(TOKENS)
    by_request = {said.request_id: said.tool_counts for said in transport.of("usage_reported")}
    assert by_request == {
        seeing.request_id: {"input_video_tokens": 0} | drawn,
        silent.request_id: {},
    }
    (ingested,) = transport.of("ingestion_reported")
    assert ingested.tool_counts == {"input_image_tokens": 0, "input_video_tokens": 0}
