"""Mix data sets in `splits/train` by their weights, so that a trainer that ignores blend.json trains the mixture.

All shards are made first, and say what they hold: so the shares are exact, and other weights make one shard a data
set at most. A data set of which less is wanted gives its first shards, and one with the first rows of the next; one
of which more is wanted is named again, and the fraction that is left over is laid out alike. Rows lie in the order of
their positions, so a smaller share is always a part of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from schemas.errors import ConfigError, IntegrityError
from schemas.run import Receipt
from schemas.sft import Mix, PackSftConfig
from tasks.report.numbers import share
from tasks.sft.datasets.blending import normalised
from tasks.sft.pack import PackJob
from tasks.sft.packed import Mixture, PackedSplit, tokens_of
from tasks.sft.stages import SplitShards, rest_job

# A data set is not repeated more often: its shards would be named by the million.
MOST_REPEATS = 1000
# How far the share of a data set may be from that of its weight.
TOLERANCE = 0.005


def wanted_tokens(config: PackSftConfig, made: Sequence[PackedSplit]) -> dict[str, int]:
    """Return how many tokens of each data set `splits/train` is to have; none for data sets that have none.

    Raises:
        ConfigError: `mix_repeats`, a data set would be repeated too often.
    """
    if config.mix is Mix.NATURAL:
        return {}
    have = {entry.dataset: sum(map(tokens_of, entry.packed)) for entry in made if entry.split == "train"}
    have = {name: tokens for name, tokens in have.items() if tokens}
    if not have:
        return {}
    weights = {entry.dataset: entry.weight for entry in made if entry.dataset in have}
    asked = dict(zip(weights, normalised(list(weights.values())), strict=True))
    # A share too small for a float is still above 0.
    totals = [tokens / max(asked[name], 1e-100) for name, tokens in have.items()]
    total = min(totals) if config.mix is Mix.DOWNSAMPLE else max(totals)
    for name, tokens in have.items():
        times = total * asked[name] / tokens
        if times > MOST_REPEATS:
            raise ConfigError(
                f"for {share(asked[name], 1)} of the tokens, {name} would be repeated {times:,.6g} times; "
                f"{MOST_REPEATS:,} are allowed: give it a smaller weight or more data, or set mix: downsample",
                code="mix_repeats",
                where=f"datasets.{name}.weight",
            )
    return {name: round(total * asked[name]) for name in have}


def rest_jobs(
    wanted: Mapping[str, int], made: Sequence[PackedSplit], splits: Sequence[SplitShards]
) -> list[PackJob]:
    """Create the jobs that make a part of a shard where the whole ones don't add up to what is wanted."""
    jobs = []
    for entry, shards in zip(made, splits, strict=True):
        if entry.split == "train" and entry.dataset in wanted:
            _, more, left = _whole(entry, wanted[entry.dataset])
            if left:
                jobs.append(rest_job(shards, entry.packed[more]["shard"], left))
    return jobs


def mixed(
    wanted: Mapping[str, int], made: Sequence[PackedSplit], rests: Sequence[Receipt]
) -> list[PackedSplit]:
    """Return the splits with the mixture of `splits/train`.

    Raises:
        IntegrityError: `mix_share`, a data set is too small to have its share.
    """
    if not wanted:
        return list(made)
    given = iter(rests)
    out = []
    for entry in made:
        if entry.split == "train" and entry.dataset in wanted:
            times, more, left = _whole(entry, wanted[entry.dataset])
            entry = replace(entry, mixture=Mixture(times, more, next(given) if left else None))
        out.append(entry)
    train = [entry for entry in out if entry.dataset in wanted and entry.split == "train"]
    tokens = [entry.shown("tokens") - entry.shown("padding_tokens") for entry in train]
    asked = normalised([entry.weight for entry in train])
    shares = [real / max(sum(tokens), 1) for real in tokens]
    off = [number for number, weight in enumerate(asked) if abs(shares[number] - weight) > TOLERANCE]
    if off:
        # One data set whose conversations are too few changes the shares of all.
        cause = max(off, key=lambda number: abs(tokens[number] - wanted[train[number].dataset]))
        name = train[cause].dataset
        raise IntegrityError(
            f"splits/train has {share(shares[cause])} of its tokens from {name}, its weight asks for "
            f"{share(asked[cause])}: whole conversations cannot come closer; use more data, or mix: natural",
            code="mix_share",
            where=f"datasets.{name}.weight",
        )
    return out


def _whole(entry: PackedSplit, wanted: int) -> tuple[int, int, int]:
    """Return how often all shards are named, how many more are, and the tokens that are missing then."""
    tokens = [tokens_of(shard) for shard in entry.packed]
    times, left = divmod(wanted, sum(tokens))
    more = 0
    while left >= tokens[more]:
        left -= tokens[more]
        more += 1
    return times, more, left
