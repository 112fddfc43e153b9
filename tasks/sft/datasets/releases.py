"""Say what releases of Megatron-Bridge put into the batches of their packed data set, where they differ.

Tokens, labels, masks and positions are the same in all of them but for what `Release` names.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import ConfigError


@dataclass(frozen=True)
class Release:
    """What a batch contains; the default has the names of all releases and the values of the latest.

    Attributes:
        argmin_names: whether boundaries are there as `cu_seqlens`, followed by -1, with `cu_seqlens_argmin`,
            `max_seqlen` and `cu_seqlens_unpadded`.
        core_names: whether they are there as in Megatron-Core, `cu_seqlens_q` and so on, with `pad_between_seqs`.
        padding_mask: whether there is one.
        attention_ones: whether `attention_mask` is ones, int64[B], where boundaries replace it, instead of `None`.
        eos_is_padding: whether every end-of-sequence token at the end of a sequence counts as padding
            (`pad_seq_to_mult`), also one that is trained from.
        eos_is_trained: whether the token after an end-of-sequence token can be trained; if not, its mask becomes 0.
        static_unpadded: whether static shapes also hold for `cu_seqlens_unpadded`.
    """

    argmin_names: bool = True
    core_names: bool = True
    padding_mask: bool = True
    attention_ones: bool = False
    eos_is_padding: bool = False
    eos_is_trained: bool = True
    static_unpadded: bool = True


RELEASES = {
    "any": Release(),
    "main": Release(argmin_names=False),
    "0.3": Release(
        core_names=False,
        padding_mask=False,
        attention_ones=True,
        eos_is_padding=True,
        eos_is_trained=False,
        static_unpadded=False,
    ),
}


def release_of(name: str | Release) -> Release:
    """Return a release by name.

    Raises:
        ConfigError: it is unknown.
    """
    if isinstance(name, Release):
        return name
    if name not in RELEASES:
        raise ConfigError(
            f"{name!r} is unknown; allowed: {', '.join(RELEASES)}, or a Release", where="release"
        )
    return RELEASES[name]
