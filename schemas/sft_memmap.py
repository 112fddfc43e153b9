"""The memmap format of a packed shard: a folder of plain arrays and a manifest.

===================  ===========================  =====================================================
file                 array                        meaning
===================  ===========================  =====================================================
`input_ids.npy`      int32[num_bins, row_width]   the tokens of each bin, padded with zeros
`loss_mask.npy`      uint8[num_bins, row_width]   its mask, padded with zeros
`packed_len.npy`     uint32[num_bins]             tokens of each bin, without padding
`seq_offsets.npy`    uint32[num_bins + 1]         where each bin begins in `seq_starts`, and its end
`seq_starts.npy`     uint32[sequences]            where each sequence begins in its bin
===================  ===========================  =====================================================

Differences of unsigned numbers are never negative: readers widen to int64 first.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MEMMAP_MANIFEST = "manifest.json"
MEMMAP_FORMAT = "memmap_padded_v1"


class MemmapManifest(BaseModel):
    """`manifest.json` of a memmap shard. Other keys are kept; ours mirror the Parquet metadata."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    version: Literal["1.0"] = "1.0"
    format: Literal["memmap_padded_v1"] = "memmap_padded_v1"
    num_bins: int = Field(ge=0, lt=2**48)
    pack_size: int = Field(ge=1, lt=2**32)
    row_width: int = Field(ge=0, lt=2**32)
    dtype: Literal["<i4"] = "<i4"
    loss_mask_dtype: Literal["<u1", "|u1"] = "<u1"
    index_dtype: Literal["<u4"] = "<u4"
    bins_written: int = Field(ge=0)

    def arrays(self) -> dict[str, tuple[str, tuple[int | None, ...]]]:
        """Return dtype and shape of each array, by name; `None` where the manifest does not say."""
        return {
            "input_ids": ("<i4", (self.num_bins, self.row_width)),
            "loss_mask": ("|u1", (self.num_bins, self.row_width)),
            "packed_len": ("<u4", (self.num_bins,)),
            "seq_offsets": ("<u4", (self.num_bins + 1,)),
            "seq_starts": ("<u4", (None,)),
        }

    def other_keys(self) -> dict[str, Any]:
        """Return the keys that are not fields of this model."""
        return dict(self.model_extra or {})


# The arrays of a shard, in the order they are written; the manifest comes last.
MEMMAP_ARRAYS = tuple(MemmapManifest(num_bins=0, pack_size=1, row_width=0, bins_written=0).arrays())
