"""Hand out the windows of groups of shards: each worker selects them from its own tokens, for all workers at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from mgpu_ngram.cluster.executor import Executor, Handle, Share
from mgpu_ngram.engine.count.text_ids import select_keys, take_keys
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.kernels import check

WINDOWS_SHARE = 0.5  # of a task's memory for windows; it counts and encodes blocks in the rest


def spans_of(tokens_S: Sequence[int], done: Collection[int], room: int, workers: int) -> list[tuple[int, int]]:
    """Return (first, past the last) shard of groups of neighbours: all shards that are not `done`.

    tokens_S  tokens of each shard
    room      most tokens of a group, unless one shard has more

    Groups have about equally many tokens. Their number is a multiple of the workers if no shard is heavy or done.
    """
    left = [shard for shard in range(len(tokens_S)) if shard not in done]
    total = max(1, sum(tokens_S[shard] for shard in left))
    n = workers * -(-total // (room * workers))
    spans, before, tokens, share = list[tuple[int, int]](), 0, 0, -1
    for shard in left:
        fits = spans and spans[-1][1] == shard and tokens + tokens_S[shard] <= room
        if fits and share == n * before // total:
            spans[-1] = spans[-1][0], shard + 1
        else:
            spans.append((shard, shard + 1))
            tokens, share = 0, n * before // total
        tokens += tokens_S[shard]
        before += tokens_S[shard]
    return spans


def tokens_of_group(budget: Budget, transport: str, order: int, symbols: int) -> int:
    """Return the tokens in the shards of a group for whose windows of up to `order` words memory suffices."""
    window_bytes = 8 * check.num_columns(order, check.code_bits(symbols))
    return max(1, int(WINDOWS_SHARE * budget.task_bytes()) // (_copies(transport) * window_bytes))


def _copies(transport: str) -> int:
    """Return how many times the windows of a group are in the memory of a worker at most: those of three passes, of
    which a worker of several processes holds both its share for all groups and what it has received for its own.
    """
    return 3 if transport == "memory" else 5


def window_groups(
    executor: Executor,
    texts: Sequence[Handle],
    lexicon: Handle,
    order: int,
    spans: Mapping[int, tuple[int, int]],
    large: Collection[int] = (),
    folder: str = "",
) -> Iterator[dict[int, Share]]:
    """Yield {group: its `WindowKeys` of each of the texts}, one group for each worker, until all groups were yielded.

    texts   handles of `TextIds`: all tokens
    order   most words of a window
    spans   (first, past the last) shard of each group; rising
    large   groups whose windows wait in files of `folder`, because memory has no room for them

    One pass over the tokens serves the groups that are yielded together: neighbours, because a pass selects all shards
    from the first to the last one. A worker takes the windows of its group from all others. Keep a share until its
    group has been made.
    """
    # Priority: otherwise a worker that makes a group would block other groups that need its tokens.
    call = partial(executor.call, priority=executor.transport != "memory")
    for some in _neighbours(spans, executor.workers):
        place = folder if any(group in large for group in some) else ""
        how = (spans[some[0]][0], spans[some[-1]][1]), lexicon, order, executor.device, place
        offer = executor.offer([call(select_keys, [text], *how, colocate_with=text) for text in texts])
        pieces = {group: offer.share(take_keys, spans[group]) for group in some}
        del offer  # lives as long as its shares
        yield pieces
        del pieces


def _neighbours(spans: Mapping[int, tuple[int, int]], most: int) -> Iterator[list[int]]:
    """Yield lists of at most `most` groups whose shards follow one another."""
    some: list[int] = []
    for group, (first, _) in spans.items():
        if some and (len(some) == most or spans[some[-1]][1] != first):
            yield some
            some = []
        some.append(group)
    if some:
        yield some
