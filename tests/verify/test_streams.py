"""Requests end when nobody wants them any more, whoever says so and whenever, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import aclosing

import pytest
from helpers.drafters import RightAnswer
from helpers.many import engine_of, text_of, watched

from groundspeed.errors import GroundspeedError, InputError
from groundspeed.types import GenerationRequest, GenerationResult, PrefillEvent, StepEvent

LONG = GenerationRequest((5, 6, 7), max_tokens=200, speculate=False)


@pytest.fixture(scope="module")
def target():
    return watched("llama", max_position_embeddings=4096)


@pytest.fixture
def engine(target):
    target.passes.clear()
    target.before = lambda segments: None
    with engine_of(target) as engine:
        yield engine
    assert engine.scheduler._thread is None


@pytest.fixture(scope="module")
def whole(target):
    with engine_of(target) as engine:
        return engine.generate(LONG)


def after(target, passes, act):
    """Do something in the thread of the engine before its pass of that number."""

    def look(segments):
        if len(target.passes) == passes:
            act()

    target.before = look


def is_part_of(result, whole):
    n = len(result.token_ids)
    assert result.token_ids == whole.token_ids[:n]
    assert result.text == "".join(f"{i} " for i in result.token_ids)
    return 0 < n < len(whole.token_ids)


def test_a_request_that_another_thread_cancels_ends_with_what_there_is(target, engine, whole):
    stream = engine.stream(LONG)
    after(target, 20, lambda: threading.Thread(target=stream.cancel).start())
    result = list(stream)[-1]
    assert result.finish_reason == "cancelled"
    assert is_part_of(result, whole)
    assert engine.generate(LONG).token_ids == whole.token_ids


def test_closing_a_stream_ends_its_request_and_nothing_comes_any_more(target, engine, whole):
    other = engine.stream(LONG)
    with engine.stream(LONG) as stream:
        seen = [next(stream) for _ in range(5)]
    assert any(isinstance(event, StepEvent) for event in seen)
    assert list(stream) == []
    assert list(other)[-1].token_ids == whole.token_ids
    assert len(target.passes[-1]) == 1


def test_a_stream_that_is_dropped_ends_its_request(target, engine, whole):
    other = engine.stream(LONG)
    stream = engine.stream(LONG)
    next(stream)
    del stream
    assert list(other)[-1].token_ids == whole.token_ids
    assert sum(len(segments) == 2 for segments in target.passes) < 100


def test_a_stream_that_nobody_reads_goes_on_to_its_end(engine, whole):
    stream = engine.stream(LONG)
    assert engine.generate(LONG).token_ids == whole.token_ids
    assert list(stream)[-1].token_ids == whole.token_ids


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_a_request_may_end_before_it_began(target, how):
    with engine_of(target, most_active=1) as engine:
        target.hold()
        first = engine.stream(LONG)
        waiting = engine.stream(
            GenerationRequest((5, 6), max_tokens=9, echo=True, timeout=1e-3 if how == "timeout" else None)
        )
        if how == "cancelled":
            waiting.cancel()
        target.release()
        [result] = [event for event in waiting if isinstance(event, GenerationResult)]
        assert result.finish_reason == how
        assert result.token_ids == ()
        assert result.stats.queued_s > 0
        assert result.stats.prefill_s == 0 or result.stats.prefill_s < 1e-3
        assert sum(isinstance(event, GenerationResult) for event in first) == 1


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_a_request_may_end_within_its_prompt(target, engine, how):
    prompt = text_of(3000)
    stream = engine.stream(GenerationRequest(prompt, max_tokens=9, timeout=0.5 if how == "timeout" else None))
    slow = threading.Event()
    after(target, 2, stream.cancel if how == "cancelled" else lambda: slow.wait(0.6))
    *events, result = stream
    assert result.finish_reason == how
    assert result.token_ids == ()
    assert [event.done for event in events if isinstance(event, PrefillEvent)] == [0, 1024, 2048]
    # What was read of it is not read again.
    assert engine.generate(GenerationRequest(prompt, max_tokens=9)).stats.cached_tokens == 2048


def test_a_request_may_run_out_of_time_within_its_answer(target, engine, whole):
    slow = threading.Event()
    after(target, 20, lambda: slow.wait(1.1))
    result = engine.generate(GenerationRequest(LONG.prompt, max_tokens=200, speculate=False, timeout=1.0))
    assert result.finish_reason == "timeout"
    assert is_part_of(result, whole)


class Counted(RightAnswer):
    begun = ended = 0

    def begin(self, request):
        Counted.begun += 1
        super().begin(request)

    def end(self):
        Counted.ended += 1


def test_every_drafter_ends_whatever_becomes_of_its_request(target, whole):
    Counted.begun = Counted.ended = 0
    with engine_of(target, lambda: Counted(whole.token_ids)) as engine:
        target.hold()
        request = GenerationRequest(LONG.prompt, max_tokens=200)
        kept, cancelled, closed, _ = (engine.stream(request) for _ in range(4))
        late = engine.stream(GenerationRequest(LONG.prompt, timeout=1e-3))
        target.release()
        cancelled.cancel()
        closed.close()
        del _
        assert list(kept)[-1].token_ids == whole.token_ids
        list(cancelled), list(late)
    assert Counted.ended == Counted.begun > 0


def test_closing_the_engine_ends_all_requests(target, whole):
    engine = engine_of(target, most_active=2)
    streams = [engine.stream(LONG) for _ in range(4)]
    while not isinstance(next(streams[0]), StepEvent):
        pass
    engine.close()
    results = [list(stream)[-1] for stream in streams]
    assert {result.finish_reason for result in results} == {"cancelled"}
    assert is_part_of(results[0], whole)
    assert results[3].token_ids == ()
    engine.close()  # again is nothing


def test_a_closed_engine_says_so(target):
    engine = engine_of(target)
    engine.generate(GenerationRequest((5,), max_tokens=2))
    engine.close()
    with pytest.raises(GroundspeedError, match="the engine was closed; make a new one"):
        engine.generate(GenerationRequest((5,), max_tokens=2))
    with pytest.raises(GroundspeedError, match="closed"):
        engine.stream(GenerationRequest((5,), max_tokens=2))
    with pytest.raises(GroundspeedError, match="closed"):
        asyncio.run(engine.agenerate(GenerationRequest((5,), max_tokens=2)))


def test_closing_from_several_threads_while_requests_come_hangs_nobody(target):
    for _ in range(5):
        engine = engine_of(target)
        ends = []

        def ask(engine=engine, ends=ends):
            while True:
                try:
                    ends.append(engine.generate(GenerationRequest((5, 6), max_tokens=3)).finish_reason)
                except GroundspeedError:
                    return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        threads += [threading.Thread(target=engine.close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert set(ends) <= {"length", "cancelled"}


def test_of_several_requests_the_first_error_is_raised_and_none_goes_on(target, engine):
    with pytest.raises(InputError, match="no tokens"):
        engine.generate_all([LONG, GenerationRequest(()), LONG])
    passes = len(target.passes)
    engine.generate(GenerationRequest((5, 6), max_tokens=3))
    assert all(len(segments) == 1 for segments in target.passes[passes:])


def test_an_engine_that_is_dropped_is_freed(target):
    engine = engine_of(target)
    engine.generate(GenerationRequest((5, 6), max_tokens=3))
    scheduler, engine = weakref.ref(engine.scheduler), None
    for thread in threading.enumerate():
        if thread.name == "groundspeed":
            thread.join(10)  # it waits a little for more to do
    gc.collect()
    assert scheduler() is None


async def answer_of(engine, request):
    events = [event async for event in engine.astream(request)]
    assert isinstance(events[0], PrefillEvent)
    return events[-1]


def test_tasks_of_an_event_loop_are_answered_side_by_side(target, engine, whole):
    async def all_of_them():
        return await asyncio.gather(*(answer_of(engine, LONG) for _ in range(6)), engine.agenerate(LONG))

    results = asyncio.run(all_of_them())
    assert [result.token_ids for result in results] == [whole.token_ids] * 7
    assert max(map(len, target.passes)) > 2


def test_a_task_that_is_cancelled_ends_its_request(target, engine, whole):
    async def some_of_them():
        kept = asyncio.create_task(engine.agenerate(LONG))
        dropped = [asyncio.create_task(engine.agenerate(LONG)) for _ in range(3)]
        timed = asyncio.create_task(asyncio.wait_for(engine.agenerate(LONG), 0.05))
        async with aclosing(engine.astream(LONG)) as stream:
            async for event in stream:
                if isinstance(event, StepEvent):
                    break
        for task in dropped:
            task.cancel()
        outcomes = await asyncio.gather(*dropped, timed, return_exceptions=True)
        return await kept, outcomes

    result, outcomes = asyncio.run(some_of_them())
    assert [type(outcome) for outcome in outcomes[:3]] == [asyncio.CancelledError] * 3
    assert isinstance(outcomes[3], TimeoutError)
    assert result.token_ids == whole.token_ids
    assert len(target.passes[-1]) == 1
    assert not engine.scheduler._active
    assert not engine.scheduler._waiting


def test_an_event_loop_that_goes_away_takes_its_requests_along(target, engine):
    async def begin():
        stream = engine.astream(LONG)
        await anext(stream)
        return stream

    stream = asyncio.run(begin())  # the loop closes its generators when it ends
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        asyncio.run(anext(stream))
    assert engine.generate(GenerationRequest((5, 6), max_tokens=3)).token_ids
    assert len(target.passes[-1]) == 1


def test_bad_requests_are_refused_by_astream_at_once(engine):
    with pytest.raises(InputError, match="no tokens"):
        engine.astream(GenerationRequest(()))
